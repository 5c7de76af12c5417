"""The research pages in a browser: demo run, comparison under changed costs, invalid uploads, and the keyboard."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from finrl_pod_app.dashboard.script.main import PAGES
from playwright.sync_api import Page, expect

from tests.dashboard.dashboard_process import DashboardProcess

pytestmark = [pytest.mark.browser, pytest.mark.slow]

MAX_TAB_STOPS = 80  # sidebar, toolbar and controls of the overview
TRAINING_TIMEOUT = 420_000  # milliseconds for the small demo on a busy machine
Opener = Callable[[str], Page]


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardProcess]:
    with DashboardProcess(tmp_path_factory.mktemp("first visit"), program="tests.dashboard.small_demo") as process:
        yield process


@pytest.fixture(scope="module")
def trained(dashboard: DashboardProcess) -> Path:
    """The folder of runs, filled by the first test."""
    assert list(dashboard.runs.glob("*/report.json")), "no demo run: see the first test"
    return dashboard.runs


def file_hashes(folder: Path) -> dict[str, str]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


# The values of the first curve: an empty list while the page replaces the figure.
FIRST_CURVE = "[...(document.querySelector('.js-plotly-plot')?._fullData?.[0]?.y ?? [])]"


def last_value(page: Page) -> float:
    """The last value of the figure's first curve."""
    return float(page.wait_for_function(f"() => {FIRST_CURVE}.at(-1)").json_value())


def focused_text(page: Page) -> str:
    """Text of the focused element, without the line of its icon's name."""
    return str(page.evaluate("document.activeElement.innerText || ''")).strip().split("\n")[-1]


def test_demo_run_is_started_and_monitored(dashboard: DashboardProcess, open_page: Opener) -> None:
    page = open_page(dashboard.url)
    expect(page.get_by_text("No runs yet")).to_be_visible()
    assert not dashboard.runs.exists()  # opening the page writes nothing
    page.get_by_role("button", name="Start the demo run").click()
    expect(page.get_by_role("progressbar").first).to_be_visible()
    expect(page.get_by_text("Samples/s").first).to_be_visible()
    page.reload()  # the training does not depend on the page
    stop = page.get_by_test_id("stMainBlockContainer").get_by_role("button", name="Stop")
    expect(stop).to_be_visible()
    expect(stop).to_be_hidden(timeout=TRAINING_TIMEOUT)
    expect(page.get_by_role("heading", name="Runs")).to_have_count(1)  # without the welcome message
    assert len(list(dashboard.runs.glob("*/report.json"))) == 1


def test_comparison_under_the_cost_slider(dashboard: DashboardProcess, trained: Path, open_page: Opener) -> None:
    page = open_page(f"{dashboard.url}/compare")
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    legend = page.locator(".js-plotly-plot .legendtext")
    assert legend.count() >= 3  # the run, equal weight, the index
    before = last_value(page)
    thumb = page.get_by_role("slider").first
    thumb.focus()
    thumb.press("End")  # by keyboard
    page.wait_for_function(f"before => {FIRST_CURVE}.at(-1) < 0.999 * before", arg=before)
    page.get_by_text("Drawdown", exact=True).last.click()
    page.wait_for_function(f"() => {FIRST_CURVE}.length > 0 && Math.max(...{FIRST_CURVE}) <= 1e-9")


def test_invalid_uploads_are_refused_and_not_stored(dashboard: DashboardProcess, open_page: Opener) -> None:
    page = open_page(f"{dashboard.url}/data")
    page.get_by_text("Import a CSV or Parquet file").click()
    rows = b"time,symbol,close\n2024-01-02,AAA,10\n2024-01-03,AAA,ten\n"
    page.locator("input[type=file]").set_input_files(
        {"name": "../../<img src=x>.csv", "mimeType": "text/csv", "buffer": rows}
    )
    expect(page.get_by_role("alert").filter(has_text=re.compile(r"line 3|row 3|ten"))).to_be_visible()
    expect(page.get_by_role("button", name="Store", exact=True)).to_be_hidden()
    page.reload()
    page.get_by_text("Import a CSV or Parquet file").click()
    page.locator("input[type=file]").set_input_files(
        {"name": "prices.exe", "mimeType": "application/octet-stream", "buffer": b"MZ"}
    )
    expect(page.get_by_text(re.compile("not allowed", re.IGNORECASE))).to_be_visible()
    assert not dashboard.store.exists()


def test_pages_write_nothing(dashboard: DashboardProcess, trained: Path, open_page: Opener) -> None:
    before = file_hashes(dashboard.folder)
    del before["dashboard.log"]
    for name, (title, _) in PAGES.items():
        page = open_page(dashboard.url if name == "overview" else f"{dashboard.url}/{name}")
        heading = next(iter(trained.iterdir())).name if name == "run" else title
        expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
        expect(page.get_by_test_id("stException")).to_have_count(0)
    after = file_hashes(dashboard.folder)
    del after["dashboard.log"]
    assert after == before


def test_keyboard_navigation(dashboard: DashboardProcess, trained: Path, open_page: Opener) -> None:
    page = open_page(dashboard.url)
    expect(page.get_by_role("heading", name="Overview", exact=True)).to_be_visible()
    titles = {title for title, _ in PAGES.values()}
    reached: set[str] = set()
    for _ in range(MAX_TAB_STOPS):
        page.keyboard.press("Tab")
        reached.add(focused_text(page))
        if titles <= reached:
            break
    assert titles <= reached
    for _ in range(MAX_TAB_STOPS):
        page.keyboard.press("Shift+Tab")
        if focused_text(page) == "System":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="System", exact=True)).to_be_visible()


def test_a_page_is_one_step_for_back_and_keeps_its_view(dashboard: DashboardProcess, open_page: Opener) -> None:
    page = open_page(f"{dashboard.url}/data")
    view = page.get_by_role("radio", name="Prices")
    view.click()
    expect(page).to_have_url(f"{dashboard.url}/data?view=Prices")
    for title in ("System", "Train"):
        page.get_by_role("link", name=title).click()
        expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="System", exact=True)).to_be_visible()
    page.go_back()
    expect(view).to_be_checked()
    assert page.url == f"{dashboard.url}/data?view=Prices"
