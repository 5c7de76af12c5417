"""The overview of the dashboard with hundreds of runs on disk: seconds until the server has drawn it.

    python -m benchmarks dashboard-overview --run runs/demo --copies 500

The copies share their files by hard links. First: a new server's first visit, which reads every run. Again: the median
of further visits, each by a new session, and the processor time of one, which other programs hardly change. Exit code 1
if a visit after the first takes longer than the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

LIMIT = 1.0  # seconds


def main() -> int:
    """Measure with copies of a run; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="finished run to copy")
    parser.add_argument("--copies", type=int, default=500)
    parser.add_argument("--visits", type=int, default=9, help="after the first")
    options = parser.parse_args()
    from tests.dashboard.dashboard_process import DashboardProcess

    # Beside the run, since hard links cannot leave a file system.
    with tempfile.TemporaryDirectory(dir=options.run.resolve().parent.parent) as folder:
        board = DashboardProcess(Path(folder))
        for number in range(options.copies):
            shutil.copytree(options.run, board.runs / f"run-{number:04d}", copy_function=os.link)
        with board:
            measured = asyncio.run(visits(board, options.visits))
    results = {
        **measured,
        "runs": options.copies,
        "limit": LIMIT,
        "held": measured["again_seconds"] <= LIMIT,
        "machine": {
            "cpus": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    }
    sys.stdout.write(json.dumps(results, indent=1, sort_keys=True) + "\n")
    return 0 if results["held"] else 1


async def visits(board: Any, count: int) -> dict[str, float]:
    """Seconds of the first visit of the overview, and the median and the server's processor time of `count` more."""
    from benchmarks.dashboard.load import connected, rerun

    server, seconds, used = psutil.Process(board.pid), [], 0.0
    for number in range(count + 1):
        async with connected(board) as socket:
            start = time.perf_counter()
            await rerun(socket, "overview")
            seconds.append(time.perf_counter() - start)
        if number == 0:
            used = sum(server.cpu_times()[:2])
    return {
        "first_seconds": round(seconds[0], 2),
        "again_seconds": round(statistics.median(seconds[1:]), 3),
        "again_cpu_seconds": round((sum(server.cpu_times()[:2]) - used) / count, 3),
    }
