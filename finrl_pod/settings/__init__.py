"""Settings: declared once, read from TOML, validated, and written with comments."""
