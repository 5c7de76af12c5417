"""`make screenshots`: every page, wide and narrow, light and dark, with the runs and paper account of this machine."""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
from pathlib import Path

from finrl_pod_app.dashboard.script.main import PAGES
from PIL import Image
from playwright.sync_api import BrowserContext, Page, sync_playwright

from tests.browser.conftest import ARGUMENTS, browser_path
from tests.browser.views import SCHEMES, SIZES, show_whole_page, wait_until_drawn
from tests.dashboard.dashboard_process import DashboardProcess

MAX_HEIGHT = 4_000  # pixels; longer pages are cut
COLOURS = 128  # of a stored picture, enough for flat areas and text
SETTLE_TIME = 1_200  # milliseconds, until figures have the new size
# Further tabs to open, by page.
TABS = {"paper": ["Orders and fills", "Next orders", "Prices", "Costs", "Risk", "Log"]}
# Texts to click for further views, by page, after the tabs.
VIEWS = {
    "data": ["Prices", "Availability of bars", "Correlations", "Features"],
    "run": ["Allocation", "Profit", "Training"],
    "compare": ["Drawdown", "Against the benchmark", "Monthly returns", "Weights", "Profit by asset", "Trades"],
    "audit": ["Run audit"],
}


def main() -> int:
    """Take all screenshots; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the pictures")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument("--journal", type=Path, help="journal of the paper account, found by default")
    parser.add_argument("--only", nargs="*", default=list(PAGES), help="pages to take")
    options = parser.parse_args()
    _create_content(options.runs, options.journal)
    options.out.mkdir(parents=True, exist_ok=True)
    runs = ("--runs", str(options.runs.resolve()))
    with DashboardProcess(options.out / "server", *runs, journal=options.journal) as board, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=browser_path(play), args=list(ARGUMENTS))
        for scheme in SCHEMES:
            for size, (width, height) in SIZES.items():
                context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
                for name in options.only:
                    _capture_page(context, board, name, options.out, f"{name}-{size}-{scheme}", (width, height))
                context.close()
        browser.close()
    return 0


def _create_content(runs: Path, journal: Path | None) -> None:
    """Create a quick run and a short paper account if there are none."""
    command = [sys.executable, "-m", "finrl_pod_app.cli.main"]
    if not any(runs.glob("*/report.json")):
        subprocess.run([*command, "demo", "--quick", "--out", str(runs / "demo")], check=True)
    if journal is None and not any(runs.glob("paper/**/journal.sqlite")):
        subprocess.run([*command, "paper", "demo", "--out", str(runs / "paper")], check=True)


def _capture_page(
    context: BrowserContext, board: DashboardProcess, name: str, out: Path, stem: str, size: tuple[int, int]
) -> None:
    page = context.new_page()
    page.goto(board.url if name == "overview" else f"{board.url}/{name}")  # the first page has no URL path
    page.locator("h1").first.wait_for(timeout=180_000)
    wait_until_drawn(page)
    _save_screenshot(page, out / f"{stem}.png", size)
    for place, tab in enumerate(TABS.get(name, []), start=2):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.get_by_role("tab", name=tab).click()
        wait_until_drawn(page)
        _save_screenshot(page, out / f"{stem}-{place}.png", size)
    for place, text in enumerate(VIEWS.get(name, []), start=2):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.get_by_test_id("stMainBlockContainer").get_by_text(text, exact=True).filter(visible=True).last.click()
        page.mouse.move(0, 0)  # so that no tooltip is shown
        wait_until_drawn(page)
        _save_screenshot(page, out / f"{stem}-{place}.png", size)
    page.close()


def _save_screenshot(page: Page, file: Path, size: tuple[int, int]) -> None:
    """Save the whole page, which Streamlit scrolls inside an element."""
    show_whole_page(page, size, MAX_HEIGHT)
    page.wait_for_timeout(SETTLE_TIME)
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
