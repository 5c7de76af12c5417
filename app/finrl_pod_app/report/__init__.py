"""The report of a run. This module imports nothing: the terminal uses `columns` without loading torch."""
