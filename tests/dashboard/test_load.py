"""The load benchmark: sessions over WebSockets draw pages as a browser would."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.dashboard import load as dashboard_load
from tests.dashboard.dashboard_process import DashboardProcess
from tests.dashboard.run_async import run_async


@pytest.mark.slow
def test_sessions_draw_pages(finished: Path, tmp_path: Path) -> None:
    with DashboardProcess(tmp_path / "served", "--runs", str(finished.parent)) as board:
        measured = run_async(dashboard_load.load(board, sessions=2, reruns=2, pause=0.0))
    assert measured["median_seconds"] > 0
    assert list(measured["pages"]) == ["overview", "run"]
    assert all(0 < page["median_seconds"] <= page["p95_seconds"] for page in measured["pages"].values())
    assert measured["end_mb"] > 50
