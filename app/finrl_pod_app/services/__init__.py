"""What the commands and the dashboard do, as functions."""
