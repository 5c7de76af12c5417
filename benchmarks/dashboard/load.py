"""Load on the dashboard: sessions over WebSockets, without browsers, that draw pages again and again.

    python -m benchmarks dashboard-load --runs runs --sessions 20 --reruns 720 --out benchmarks/dashboard_load.json

Each session opens one of the pages and asks for a rerun, waits until the server reports it as finished, pauses, and
asks again. Memory: growth of the server from a tenth of the reruns to the end. Exit code 1 if a limit is exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

PAGES = ("overview", "run", "train", "paper", "data")
LIMITS = {"p95_seconds": 1.0, "growth_mb": 100.0}
TIMEOUT = 120.0  # seconds for one rerun


def main() -> int:
    """Run the sessions against a new server; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of runs")
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--reruns", type=int, default=720, help="of each session")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two reruns of a session")
    parser.add_argument("--out", type=Path, help="result file")
    options = parser.parse_args()
    from tests.dashboard.dashboard_process import DashboardProcess

    runs = ("--runs", str(options.runs.resolve()))
    with tempfile.TemporaryDirectory() as folder, DashboardProcess(Path(folder), *runs) as board:
        measured = asyncio.run(load(board, options.sessions, options.reruns, options.pause))
    results = {
        **measured,
        "sessions": options.sessions,
        "reruns_each": options.reruns,
        "pause_seconds": options.pause,
        "limits": LIMITS,
        "held": {name: measured[name] <= limit for name, limit in LIMITS.items()},
        "machine": {
            "cpus": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    }
    text = json.dumps(results, indent=1, sort_keys=True) + "\n"
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text)
    return 0 if all(results["held"].values()) else 1


async def load(board: Any, sessions: int, reruns: int, pause: float) -> dict[str, Any]:
    """Seconds of the reruns after each session's first one, of all pages and of each, and the server's memory in MB."""
    server = psutil.Process(board.pid)
    seconds: dict[str, list[float]] = {page: [] for page in PAGES[:sessions]}
    first_visits: list[float] = []
    total, done, warm_mb = sessions * reruns, 0, 0.0

    async def session(number: int) -> None:
        nonlocal done, warm_mb
        page = PAGES[number % len(PAGES)]
        async with connected(board) as socket:
            first_visits.append(await rerun(socket, page))
            for _ in range(reruns):
                await asyncio.sleep(pause)
                seconds[page].append(await rerun(socket, page))
                done += 1
                if not warm_mb and done >= total // 10:
                    warm_mb = server.memory_info().rss / 1e6

    await asyncio.gather(*(session(number) for number in range(sessions)))
    end_mb = server.memory_info().rss / 1e6
    assert done == total
    return {
        **median_and_p95([value for values in seconds.values() for value in values]),
        "pages": {page: median_and_p95(values) for page, values in seconds.items()},
        "first_visit_seconds": round(float(np.median(first_visits)), 2),
        "warm_mb": round(warm_mb, 1),
        "end_mb": round(end_mb, 1),
        "growth_mb": round(end_mb - warm_mb, 1),
    }


def median_and_p95(seconds: Sequence[float]) -> dict[str, float]:
    """Median and 95% quantile of the reruns' seconds."""
    median, p95 = np.quantile(seconds, (0.5, 0.95))
    return {"median_seconds": round(float(median), 3), "p95_seconds": round(float(p95), 3)}


def connected(board: Any) -> Any:
    """A WebSocket to the server, as a browser page opens it."""
    from websockets.asyncio.client import connect

    address = f"ws://127.0.0.1:{board.port}/_stcore/stream"
    return connect(address, origin=board.url, subprotocols=["streamlit"], max_size=None, proxy=None)


async def rerun(socket: Any, page: str) -> float:
    """Ask for a rerun of a page and wait for its end; returns the seconds."""
    from streamlit.proto.BackMsg_pb2 import BackMsg
    from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

    message = BackMsg()
    message.rerun_script.page_name = "" if page == "overview" else page
    start = time.perf_counter()
    await socket.send(message.SerializeToString())
    async with asyncio.timeout(TIMEOUT):
        while True:
            payload = await socket.recv()
            if isinstance(payload, bytes) and ForwardMsg.FromString(payload).WhichOneof("type") == "script_finished":
                return time.perf_counter() - start
