"""`make screenshots`: every page, wide and narrow, light and dark, of this machine's runs and paper account."""

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
from tests.dashboard.dashboard_process import DashboardProcess

WIDTHS = {"wide": (1440, 900), "narrow": (390, 844)}
TALLEST = 4_000  # pixels of a page; longer ones are cut
COLOURS = 128  # of a picture that is kept: enough for flat areas and text
SETTLED = 1_200  # milliseconds without a change of the page
# What is shown when a page has tabs: the place of the tab by the page's name, beside the first.
TABS = {"paper": ["Orders and fills", "Costs", "Risk", "Log"]}
# What is shown after a click on such words: the place of the view by the page's name, after the tabs.
VIEWS = {
    "data": ["Prices", "Correlations"],
    "train": ["Watch"],
    "compare": ["Drawdown", "Months", "Weights", "Trades"],
    "audit": ["Run the audit"],
}


def main() -> int:
    """Take them all; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the pictures")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument("--journal", type=Path, help="the paper account's journal, looked for unless given")
    parser.add_argument("--only", nargs="*", default=list(PAGES), help="pages to take")
    chosen = parser.parse_args()
    _make_content(chosen.runs, chosen.journal)
    chosen.out.mkdir(parents=True, exist_ok=True)
    runs = ("--runs", str(chosen.runs.resolve()))
    with DashboardProcess(chosen.out / "server", *runs, journal=chosen.journal) as board, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=browser_path(play), args=list(ARGUMENTS))
        for scheme in ("light", "dark"):
            for size, (width, height) in WIDTHS.items():
                window = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
                for name in chosen.only:
                    _take(window, board, name, chosen.out, f"{name}-{size}-{scheme}", (width, height))
                window.close()
        browser.close()
    return 0


def _make_content(runs: Path, journal: Path | None) -> None:
    """A quick run and a short paper account, where there are none."""
    command = [sys.executable, "-m", "finrl_pod_app.cli.main"]
    if not any(runs.glob("*/report.json")):
        subprocess.run([*command, "demo", "--quick", "--out", str(runs / "demo")], check=True)
    if journal is None and not any(runs.glob("paper/**/journal.sqlite")):
        subprocess.run([*command, "paper", "demo", "--out", str(runs / "paper")], check=True)


def _take(
    window: BrowserContext, board: DashboardProcess, name: str, out: Path, stem: str, size: tuple[int, int]
) -> None:
    page = window.new_page()
    page.goto(board.url if name == "overview" else f"{board.url}/{name}")  # the first page has no name in its address
    page.locator("h1").first.wait_for(timeout=180_000)
    _settle(page)
    _picture(page, out / f"{stem}.png", size)
    for place, tab in enumerate(TABS.get(name, []), start=2):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.get_by_role("tab", name=tab).click()
        _settle(page)
        _picture(page, out / f"{stem}-{place}.png", size)
    for place, words in enumerate(VIEWS.get(name, []), start=2):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.get_by_test_id("stMainBlockContainer").get_by_text(words, exact=True).filter(visible=True).last.click()
        page.mouse.move(0, 0)  # away from what explains itself under it
        _settle(page)
        _picture(page, out / f"{stem}-{place}.png", size)
    page.close()


def _settle(page: Page) -> None:
    """Until the server has drawn everything and nothing is a grey placeholder any more."""
    page.wait_for_timeout(SETTLED)  # it takes a moment to begin
    page.wait_for_function(
        "() => !document.querySelector('[data-testid=stSkeleton], [data-testid=stStatusWidget], "
        "[data-testid=stApp][data-test-script-state=running]')",
        timeout=180_000,
    )
    page.wait_for_timeout(SETTLED)


def _picture(page: Page, file: Path, size: tuple[int, int]) -> None:
    """The whole page, which Streamlit scrolls inside of a part of its own."""
    wanted = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    page.set_viewport_size({"width": size[0], "height": min(max(int(wanted), size[1]), TALLEST)})
    page.wait_for_timeout(SETTLED)
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
