"""Files that `finrl-pod new` writes: one working example of each kind of extension, renamed by the given name."""
