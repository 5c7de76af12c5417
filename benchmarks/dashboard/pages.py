"""Speed and memory of the dashboard with 200 runs of 50 pods and a journal of one year with 30 symbols.

    python -m benchmarks dashboard --make /tmp/large             # once: trains a run, copies it, trades the year
    python -m benchmarks dashboard --data /tmp/large --out benchmarks/dashboard.json

Page: time in Chromium from the click on its link until the heading is visible and the server has drawn the page; the
first visit, and the median of the others. Slider: from the key press to the changed curve. Server: growth of the memory
of a running server while several open windows of the paper page refresh by themselves, with writes to the journal. Exit
code 1 if a limit is exceeded.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil

from benchmarks.harness.rows import Row, median_row, single_row

RUNS = 200
PODS = 50
SYMBOLS = 30
FIRST = date(2023, 1, 3)
LAST = date(2023, 12, 29)
WINDOWS = 8  # open on the paper page
SERVER_REFRESHES = 2_200  # over all windows, about eight minutes
# seconds
MAX_PAINT = 2.0
MAX_PAGE = 1.0
MAX_SLIDER = 0.3
MAX_GROWTH = 50.0  # MB
Part = Literal["pages", "server"]


@dataclass(frozen=True)
class PageSettings:
    """Settings of `dashboard`.

    make: folder for new runs and a journal. data: folder to measure. refreshes: number of refreshes of the paper page,
    over all windows. visits: number of visits of a page after the first. only: parts; empty for all.
    """

    make: Path | None = None
    data: Path | None = None
    refreshes: int = SERVER_REFRESHES
    visits: int = 5
    only: tuple[Part, ...] = ()


def page_rows(settings: PageSettings) -> Iterator[Row]:
    """Create the data or measure."""
    if settings.make is not None:
        make(settings.make)
    if settings.data is None:
        return
    config = content(settings.data)
    if not settings.only or "pages" in settings.only:
        yield from browser_rows(settings.data, settings.visits, config)
    if not settings.only or "server" in settings.only:
        yield server_row(settings.data, settings.refreshes, config)


def content(folder: Path) -> dict[str, int]:
    from finrl_pod_app.dashboard.queries import paper_journal

    journal = paper_journal.load(folder / "journal.sqlite")
    return {
        "runs": len(list((folder / "runs").glob("*/report.json"))),
        "sessions": len(journal.equity),
        "symbols": int(journal.orders.symbol.nunique()),
        "orders": len(journal.orders),
        "fills": len(journal.fills),
    }


def make(folder: Path) -> None:
    """Create 200 copies of a run of 50 pods with different names and ages, and the journal of a year."""
    from finrl_pod_app.setup.presets import preset
    from finrl_pod_app.training.tournaments import run_tournament

    quick = preset("quick")
    budget = dataclasses.replace(
        quick.tournament, pods=PODS, samples_per_generation=4_096, generations=2, leaderboard=PODS
    )
    first = folder / "runs" / "run-000"
    if not (first / "report.json").is_file():
        run_tournament(dataclasses.replace(quick, tournament=budget), first, device="cpu")
    for n in range(1, RUNS):
        copy = folder / "runs" / f"run-{n:03d}"
        if not copy.exists():
            shutil.copytree(first, copy, copy_function=os.link)  # no page changes these files
            report = json.loads((first / "report.json").read_text())
            report["test"]["strategies"]["champion"]["sharpe"] += n / 1_000  # different contents for caches
            (copy / "report.json").unlink()
            (copy / "report.json").write_text(json.dumps(report))
            modified_time = time.time() - 3_600 * n
            os.utime(copy / "report.json", (modified_time, modified_time))
    make_journal(folder / "journal.sqlite")


def make_journal(path: Path) -> None:
    """Write the journal of a year of daily rebalancing over 30 symbols on a simulated broker."""
    from finrl_pod.data.panel import make_panel
    from finrl_pod.paper.domain.schedule import Calendar
    from finrl_pod.paper.execution.trader import LoadedStrategy
    from finrl_pod.paper.runtime.replay import replay
    from finrl_pod.paper.settings import BrokerSettings, DataSettings, OrderSettings, PaperConfig, ScheduleSettings

    class FixedSource:
        def current(self) -> LoadedStrategy:
            return LoadedStrategy(Daily(), "daily")

    days = [s.date for s in Calendar().sessions(date(2022, 12, 1), LAST)]
    rng = np.random.default_rng(0)
    close = np.round(80 * np.exp(np.cumsum(rng.normal(0.0004, 0.015, (len(days), SYMBOLS)), axis=0)), 2)
    symbols = tuple(f"S{n:02d}" for n in range(SYMBOLS))
    panel = make_panel(np.array(days, dtype="datetime64[ns]"), symbols, {"close": close}, name="made", source="made")
    config = PaperConfig(
        name="year", strategy="daily", symbols=symbols, capital=1e6, data=DataSettings(window=20),
        broker=BrokerSettings(kind="simulated", cost_bps=2.0), schedule=ScheduleSettings("close"),
        orders=OrderSettings(min_value=10.0),
    )  # fmt: skip
    if not path.is_file():
        replay(config, panel, [FixedSource()], FIRST, LAST, path)


@dataclasses.dataclass
class Daily:
    """Weights that change daily and so cause an order per symbol and day."""

    name: str = "daily"
    feature_names: tuple[str, ...] = ()
    lookback: int = 2

    def target_weights(self, window: Any, positions: Any) -> Any:  # noqa: ARG002 - the interface of strategies
        day = int(window.times[-1].astype("datetime64[D]").astype(int))
        weights = 1 + 0.5 * np.sin(day + np.arange(len(window.symbols)))
        return weights / weights.sum()


def browser_rows(folder: Path, visits: int, config: dict[str, Any]) -> Iterator[Row]:
    from finrl_pod_app.dashboard.script.main import PAGES
    from playwright.sync_api import sync_playwright

    from tests.browser.conftest import ARGUMENTS, browser_path
    from tests.dashboard.dashboard_process import DashboardProcess

    runs = ("--runs", str((folder / "runs").resolve()))
    with (
        DashboardProcess(folder / "server", *runs, journal=folder / "journal.sqlite") as board,
        sync_playwright() as play,
    ):
        browser = play.chromium.launch(executable_path=browser_path(play), args=list(ARGUMENTS))
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.set_default_timeout(120_000)
        page.goto(board.url)  # once, to load scripts and modules as in a running server
        page.locator("h1").first.wait_for()
        times: dict[str, list[float]] = {name: [] for name in PAGES}
        for _ in range(visits + 1):
            for name, (title, _icon) in PAGES.items():
                start = time.perf_counter()
                page.get_by_role("link", name=title, exact=True).click()
                page.get_by_role("heading", name=title, exact=True).wait_for()
                page.wait_for_function(
                    "() => !document.querySelector('[data-testid=stApp][data-test-script-state=running]')"
                )
                times[name].append(time.perf_counter() - start)
                if name == "compare":
                    page.locator(".js-plotly-plot").first.wait_for()
        page.get_by_role("link", name=PAGES["compare"][0], exact=True).click()
        page.locator(".js-plotly-plot").first.wait_for()
        slider = [_move_slider(page, key) for key in ("End", "Home") * 3]
        paints = []
        for _ in range(3):
            new_page = browser.new_page()
            new_page.goto(board.url)
            new_page.locator("h1").first.wait_for()
            paints.append(float(new_page.evaluate("performance.now()")) / 1_000)
            new_page.close()
        browser.close()
    yield median_row("first_paint_seconds", paints, "s", {**config, "limit": MAX_PAINT})
    for name, seconds in times.items():
        yield median_row(f"page_{name}_seconds", seconds[1:], "s", {**config, "first": seconds[0], "limit": MAX_PAGE})
    yield median_row("slider_seconds", slider, "s", {**config, "limit": MAX_SLIDER})


def _move_slider(page: Any, key: str) -> float:
    """Seconds from a key press on the slider to the changed curve."""
    last = "[...document.querySelector('.js-plotly-plot')._fullData[0].y].at(-1)"
    previous_value = page.evaluate(last)
    thumb = page.get_by_role("slider").first
    thumb.focus()
    start = time.perf_counter()
    thumb.press(key)
    page.wait_for_function(f"before => {last} !== before", arg=previous_value, polling=10)
    return time.perf_counter() - start


def server_row(folder: Path, refreshes: int, config: dict[str, Any]) -> Row:
    """Memory of a server after a tenth of the refreshes and at the end, while the journal grows.

    A refresh is counted when the server reports a finished script to one of the untouched windows.
    """
    from playwright.sync_api import WebSocket, sync_playwright
    from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

    from finrl_pod.paper.journal import schema
    from finrl_pod.paper.journal.store import Store
    from tests.browser.conftest import ARGUMENTS, browser_path
    from tests.dashboard.dashboard_process import DashboardProcess

    copy = folder / "watched.sqlite"
    shutil.copy(folder / "journal.sqlite", copy)
    store = Store.open(copy)
    refresh_count = 0
    warm = max(refreshes // 10, 1)
    after_warm = 0.0

    def count_refresh(payload: str | bytes) -> None:
        nonlocal refresh_count
        if isinstance(payload, bytes) and ForwardMsg.FromString(payload).WhichOneof("type") == "script_finished":
            refresh_count += 1

    def listen(socket: WebSocket) -> None:
        socket.on("framereceived", count_refresh)

    # The server ends before the windows are closed: closing a window during a refresh logs a Streamlit error
    # that fails the run.
    with sync_playwright() as play, DashboardProcess(folder / "server", journal=copy) as board:
        browser = play.chromium.launch(executable_path=browser_path(play), args=list(ARGUMENTS))
        pages = [browser.new_page() for _ in range(WINDOWS)]
        for page in pages:
            page.on("websocket", listen)
            page.goto(f"{board.url}/paper", timeout=120_000)
        server = psutil.Process(board.pid)
        while refresh_count < refreshes:
            store.add(schema.alerts, datetime.now(UTC), level="info", kind="test", message=f"after {refresh_count}")
            pages[0].wait_for_timeout(5_000)
            if not after_warm and refresh_count >= warm:
                after_warm = server.memory_info().rss / 1e6
        end = server.memory_info().rss / 1e6
    store.close()
    memory = {"warm_mb": after_warm, "end_mb": end, "limit": MAX_GROWTH}
    details = {"refreshes": refresh_count, "windows": WINDOWS, **config}
    return single_row("server_growth", end - after_warm, "MB", **memory, **details)
