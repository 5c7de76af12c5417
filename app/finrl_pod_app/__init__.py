"""The command line and what it wires together."""
