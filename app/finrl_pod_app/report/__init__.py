"""The report of a run: `document` builds the object of report.json, `html` renders it as one page.

This module imports nothing, so that the terminal can use `columns` without loading torch.
"""
