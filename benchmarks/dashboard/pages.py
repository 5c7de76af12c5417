"""Speed and memory of the dashboard with 200 runs of 50 pods and a journal of one year with 30 symbols.

    python -m benchmarks dashboard --make /tmp/large             # once: trains a run, copies it, trades the year
    python -m benchmarks dashboard --of /tmp/large --out benchmarks/dashboard.json

Page: time in Chromium from the click on its link until the heading is visible and the server has drawn the page; the
first visit, and the median of the others. Slider: from the key press to the changed curve. Memory: growth of a process
over as many refreshes of the paper page as in a day, with a write to the journal before each. Server: growth of a
running server while several open windows refresh by themselves.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

RUNS, PODS, SYMBOLS = 200, 50, 30
FIRST, LAST = date(2023, 1, 3), date(2023, 12, 29)
WINDOWS = 8  # open on the paper page
SERVER_REFRESHES = 2_200  # over all windows, about eight minutes
REFRESHES_PER_DAY = 24 * 3600 // 10  # of the account, one every 10 s; the status reads the same frames
LIMITS = {"first_paint": 2.0, "page": 1.0, "slider": 0.3, "growth_mb": 50.0, "served_growth_mb": 50.0}


def main() -> int:
    """Create the data or measure; returns the exit code, 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", type=Path, help="create runs and journal in this folder")
    parser.add_argument("--of", type=Path, help="measure with the data in this folder")
    parser.add_argument(
        "--refreshes", type=int, default=REFRESHES_PER_DAY, help="refreshes of the paper page in the memory test"
    )
    parser.add_argument("--visits", type=int, default=5, help="visits of each page after the first")
    parser.add_argument("--only", choices=["pages", "memory", "server"], help="run one part only")
    parser.add_argument("--out", type=Path, help="result file, updated")
    options = parser.parse_args()
    if options.make:
        make(options.make)
    if not options.of:
        return 0
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "pages": lambda: pages(options.of, options.visits),
        "memory": lambda: memory(options.of / "journal.sqlite", options.refreshes),
        "server": lambda: server_memory(options.of, min(options.refreshes, SERVER_REFRESHES)),
    }
    results = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    results |= {name: part() for name, part in parts.items() if options.only in (None, name)}
    results |= {"content": content(options.of), "limits": LIMITS, "machine": machine(), "held": limits_held(results)}
    text = json.dumps(results, indent=1, sort_keys=True) + "\n"
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text)
    return 0 if all(results["held"].values()) else 1


def limits_held(results: dict[str, Any]) -> dict[str, bool]:
    """Whether each limit is held."""
    outcome = {}
    if "pages" in results:
        outcome["first_paint"] = results["pages"]["first_paint_seconds"] <= LIMITS["first_paint"]
        outcome |= {f"page {n}": t["median"] <= LIMITS["page"] for n, t in results["pages"]["page_seconds"].items()}
        outcome["slider"] = results["pages"]["slider_seconds"] <= LIMITS["slider"]
    if "memory" in results:
        outcome["growth_mb"] = results["memory"]["growth_mb"] <= LIMITS["growth_mb"]
    if "server" in results:
        outcome["served_growth_mb"] = results["server"]["growth_mb"] <= LIMITS["served_growth_mb"]
    return outcome


def content(folder: Path) -> dict[str, int]:
    """Size of the data."""
    from finrl_pod_app.dashboard.queries import paper_journal

    journal = paper_journal.load(folder / "journal.sqlite")
    return {
        "runs": len(list((folder / "runs").glob("*/report.json"))),
        "sessions": len(journal.equity),
        "symbols": int(journal.orders.symbol.nunique()),
        "orders": len(journal.orders),
        "fills": len(journal.fills),
    }


def machine() -> dict[str, Any]:
    """The machine and its load."""
    return {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "measured": datetime.now(UTC).isoformat()}


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
            shutil.copytree(first, copy, copy_function=_hard_link)
            report = json.loads((first / "report.json").read_text())
            report["test"]["strategies"]["champion"]["sharpe"] += n / 1_000  # different contents for caches
            (copy / "report.json").unlink()
            (copy / "report.json").write_text(json.dumps(report))
            modified = time.time() - 3_600 * n
            os.utime(copy / "report.json", (modified, modified))
    make_journal(folder / "journal.sqlite")


def _hard_link(source: str, target: str) -> None:
    """Link instead of copying: no page changes these files."""
    os.link(source, target)


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
    """Weights that change daily, which causes an order per symbol and day."""

    name: str = "daily"
    feature_names: tuple[str, ...] = ()
    lookback: int = 2

    def target_weights(self, window: Any, positions: Any) -> Any:  # noqa: ARG002 - the interface of strategies
        day = int(window.times[-1].astype("datetime64[D]").astype(int))
        weights = 1 + 0.5 * np.sin(day + np.arange(len(window.symbols)))
        return weights / weights.sum()


def pages(folder: Path, visits: int) -> dict[str, Any]:
    """First paint, pages and slider in a browser."""
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
            fresh = browser.new_page()
            fresh.goto(board.url)
            fresh.locator("h1").first.wait_for()
            paints.append(float(fresh.evaluate("performance.now()")) / 1_000)
            fresh.close()
        browser.close()
    return {
        "first_paint_seconds": round(statistics.median(paints), 3),
        "page_seconds": {
            name: {"first": round(t[0], 3), "median": round(statistics.median(t[1:]), 3)} for name, t in times.items()
        },
        "slider_seconds": round(statistics.median(slider), 3),
    }  # fmt: skip


def _move_slider(page: Any, key: str) -> float:
    """Seconds from a key press on the slider to the changed curve."""
    last = "[...document.querySelector('.js-plotly-plot')._fullData[0].y].at(-1)"
    before = page.evaluate(last)
    thumb = page.get_by_role("slider").first
    thumb.focus()
    start = time.perf_counter()
    thumb.press(key)
    page.wait_for_function(f"before => {last} !== before", arg=before, polling=10)
    return time.perf_counter() - start


def memory(journal: Path, refreshes: int) -> dict[str, Any]:
    """Memory of the process after a tenth of the refreshes and at the end, while the journal grows."""
    from streamlit.testing.v1 import AppTest

    from finrl_pod.paper.journal import schema
    from finrl_pod.paper.journal.store import Store

    def script(path: str) -> None:
        from pathlib import Path

        from finrl_pod_app.dashboard.pages import paper
        from finrl_pod_app.dashboard.settings import Settings

        paper.render(Settings(journals=(Path(path),)))

    copy = journal.with_name("growing.sqlite")
    shutil.copy(journal, copy)
    store = Store.open(copy)
    app = AppTest.from_function(script, kwargs={"path": str(copy)}, default_timeout=120)
    process, warm, after_warm = psutil.Process(), max(refreshes // 10, 1), 0.0
    for n in range(refreshes):
        store.add(schema.alerts, datetime.now(UTC), level="info", kind="test", message=f"refresh {n}")
        app.run()
        if app.exception:
            raise RuntimeError(app.exception[0].value)
        if n + 1 == warm:
            after_warm = process.memory_info().rss / 1e6
    store.close()
    end = process.memory_info().rss / 1e6
    return {"refreshes": refreshes, "warm_mb": round(after_warm, 1), "end_mb": round(end, 1),
            "growth_mb": round(end - after_warm, 1)}  # fmt: skip


def server_memory(folder: Path, refreshes: int) -> dict[str, Any]:
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
    store, drawn, warm, after_warm = Store.open(copy), 0, max(refreshes // 10, 1), 0.0

    def count_refresh(payload: str | bytes) -> None:
        nonlocal drawn
        if isinstance(payload, bytes) and ForwardMsg.FromString(payload).WhichOneof("type") == "script_finished":
            drawn += 1

    def listen(socket: WebSocket) -> None:
        socket.on("framereceived", count_refresh)

    # The server ends before the windows are closed: closing a window during a refresh logs a Streamlit error, which
    # fails the run.
    with sync_playwright() as play, DashboardProcess(folder / "server", journal=copy) as board:
        browser = play.chromium.launch(executable_path=browser_path(play), args=list(ARGUMENTS))
        pages = [browser.new_page() for _ in range(WINDOWS)]
        for page in pages:
            page.on("websocket", listen)
            page.goto(f"{board.url}/paper", timeout=120_000)
        server = psutil.Process(board.pid)
        while drawn < refreshes:
            store.add(schema.alerts, datetime.now(UTC), level="info", kind="test", message=f"after {drawn}")
            pages[0].wait_for_timeout(5_000)
            if not after_warm and drawn >= warm:
                after_warm = server.memory_info().rss / 1e6
        end = server.memory_info().rss / 1e6
    store.close()
    return {"refreshes": drawn, "windows": WINDOWS, "warm_mb": round(after_warm, 1), "end_mb": round(end, 1),
            "growth_mb": round(end - after_warm, 1)}  # fmt: skip
