"""The settings of runs: declared once, read from TOML, checked, and written back with their comments."""
