"""Sources of prices."""
