"""Markets in which several agents act at once and move the prices."""
