"""Services of the `finrl-pod paper` commands."""
