"""Where the comparison of a journal with its replayed backtest is kept."""

from __future__ import annotations

from pathlib import Path


def track_file(journal: Path) -> Path:
    """Beside the journal."""
    return journal.with_name(f"{journal.stem}.tracking.json")
