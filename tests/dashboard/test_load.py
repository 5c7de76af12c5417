"""The load benchmark: sessions over WebSockets draw pages as a browser would."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.dashboard import load
from tests.dashboard.dashboard_process import DashboardProcess
from tests.dashboard.run_async import run_async


@pytest.mark.slow
def test_sessions_draw_pages(finished: Path, tmp_path: Path) -> None:
    with DashboardProcess(tmp_path / "served", "--runs", str(finished.parent)) as board:
        settings = load.LoadSettings(sessions=2, reruns=2, pause=0.0)
        rows = {row.name: row for row in run_async(load.load(board, settings))}
    assert {"overview_seconds", "run_seconds"} <= set(rows)
    assert "train_seconds" not in rows
    assert all(0 < row.low <= row.value <= row.high for name, row in rows.items() if name.endswith("_seconds"))
    assert rows["growth_mb"].config["end_mb"] > 50
