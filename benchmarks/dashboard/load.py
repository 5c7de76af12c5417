"""Load on the dashboard: sessions over WebSockets, without browsers, that draw pages again and again.

    python -m benchmarks dashboard-load --runs runs --sessions 20 --reruns 720 --out benchmarks/dashboard_load.json
    python -m benchmarks dashboard-overview --run runs/demo --copies 500

Load: each session opens one of the pages and asks for a rerun, waits until the server reports it as finished, pauses,
and asks again. Memory: growth of the server from a tenth of the reruns to the end. Overview: seconds until a server
with hundreds of runs on disk has drawn the overview page, on the first visit, when it reads every run, and later, by
new sessions. Exit code 1 if a limit is exceeded.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.harness.rows import Row, median_row, single_row

PAGES = ("overview", "run", "train", "paper", "data")
# seconds, MB, seconds
MAX_P95 = 1.0
MAX_GROWTH = 100.0
MAX_REVISIT = 1.0
TIMEOUT = 120.0  # seconds for one rerun


@dataclass(frozen=True)
class LoadSettings:
    """Settings of `dashboard-load`. reruns: number per session. pause: seconds between two reruns of a session."""

    runs: Path = Path("runs")
    sessions: int = 20
    reruns: int = 720
    pause: float = 1.0


@dataclass(frozen=True)
class OverviewSettings:
    """Settings of `dashboard-overview`. run: finished run to copy by hard links. visits: after the first."""

    run: Path = Path("runs/demo")
    copies: int = 500
    visits: int = 9


def load_rows(settings: LoadSettings) -> list[Row]:
    """Run the sessions against a new server."""
    from tests.dashboard.dashboard_process import DashboardProcess

    runs = ("--runs", str(settings.runs.resolve()))
    with tempfile.TemporaryDirectory() as folder, DashboardProcess(Path(folder), *runs) as board:
        return asyncio.run(load(board, settings))


async def load(board: Any, settings: LoadSettings) -> list[Row]:
    """Seconds of the reruns after the first one of each session, of all pages and of each, and the growth of memory."""
    server = psutil.Process(board.pid)
    seconds: dict[str, list[float]] = {page: [] for page in PAGES[: settings.sessions]}
    first_visits: list[float] = []
    total = settings.sessions * settings.reruns
    count = 0
    warm_mb = 0.0

    async def session(number: int) -> None:
        nonlocal count, warm_mb
        page = PAGES[number % len(PAGES)]
        async with open_socket(board) as socket:
            first_visits.append(await rerun(socket, page))
            for _ in range(settings.reruns):
                await asyncio.sleep(settings.pause)
                seconds[page].append(await rerun(socket, page))
                count += 1
                if not warm_mb and count >= total // 10:
                    warm_mb = server.memory_info().rss / 1e6

    await asyncio.gather(*(session(number) for number in range(settings.sessions)))
    end_mb = server.memory_info().rss / 1e6
    config = {**asdict(settings), "runs": str(settings.runs)}
    every_rerun = [value for values in seconds.values() for value in values]
    rows = [
        single_row("p95_seconds", float(np.quantile(every_rerun, 0.95)), "s", limit=MAX_P95, **config),
        median_row("first_visit_seconds", first_visits, "s", config),
    ]
    for page, values in {"all pages": every_rerun, **seconds}.items():
        median, p95 = np.quantile(values, (0.5, 0.95))
        interval = {"interval": "up to the 95% quantile"}
        rows.append(Row(f"{page}_seconds", float(median), min(values), float(p95), "s", {**config, **interval}))
    growth = {"warm_mb": warm_mb, "end_mb": end_mb, "limit": MAX_GROWTH}
    return [*rows, single_row("growth_mb", end_mb - warm_mb, "MB", **growth, **config)]


def overview_rows(settings: OverviewSettings) -> list[Row]:
    """Measure the overview page with copies of a run."""
    from tests.dashboard.dashboard_process import DashboardProcess

    # Beside the run, since hard links cannot leave a file system.
    with tempfile.TemporaryDirectory(dir=settings.run.resolve().parent.parent) as folder:
        board = DashboardProcess(Path(folder))
        for number in range(settings.copies):
            shutil.copytree(settings.run, board.runs / f"run-{number:04d}", copy_function=os.link)
        with board:
            first, revisits, cpu_seconds = asyncio.run(visit_overview(board, settings.visits))
    config = {"runs": settings.copies}
    return [
        single_row("first_seconds", first, "s", **config),
        median_row("again_seconds", revisits, "s", {**config, "limit": MAX_REVISIT}),
        single_row("again_cpu_seconds", cpu_seconds, "s", **config),
    ]


async def visit_overview(board: Any, count: int) -> tuple[float, list[float], float]:
    """Seconds of the first visit and of `count` more, and processor seconds of the server for one of those."""
    server = psutil.Process(board.pid)
    seconds = []
    first_cpu = 0.0
    for number in range(count + 1):
        async with open_socket(board) as socket:
            start = time.perf_counter()
            await rerun(socket, "overview")
            seconds.append(time.perf_counter() - start)
        if number == 0:
            first_cpu = sum(server.cpu_times()[:2])
    return seconds[0], seconds[1:], (sum(server.cpu_times()[:2]) - first_cpu) / count


def open_socket(board: Any) -> Any:
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
