"""The report of a run: the object of report.json (`document`), and the page made from it (`html`).

Nothing is imported here: the names of columns serve programs that load no tensors.
"""
