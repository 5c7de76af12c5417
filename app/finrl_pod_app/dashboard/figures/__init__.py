"""Plotly figures of the pages, pure functions of what `queries` return."""
