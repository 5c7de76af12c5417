"""axe-core over every page and view, light and dark, wide and narrow; and the layout: nothing overlaps or is cut."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from finrl_pod_app.dashboard.pages.compare import VIEWS as COMPARE_VIEWS
from finrl_pod_app.dashboard.script.main import PAGES
from playwright.sync_api import Browser, BrowserContext, Page

from finrl_pod.data.store import Store
from finrl_pod.types import Panel
from tests.app.small_run import isolated_folders, run_tournament, small_config
from tests.browser.views import SIZES, show_whole_page, wait_until_drawn
from tests.dashboard.dashboard_process import DashboardProcess
from tests.paper.factories import SimulatedDaemon, prices

pytestmark = [pytest.mark.browser, pytest.mark.slow]

AXE = Path(__file__).parent / "vendor" / "axe.min.js"  # axe-core 4.14.1, MPL-2.0: see the licences beside it
UNIVERSE = "universe"  # a stored panel
# Views of a page beside its first one, by its path.
VIEWS = {
    "run?name=good": ("Allocation", "Profit", "Mandate", "Reasons", "Training", "Config"),
    "compare": COMPARE_VIEWS[1:],
    "data": ("Prices", "Availability of bars", "Correlations", "Features"),
    "paper": ("Orders and fills", "Costs", "Risk", "Log"),
}
SERIOUS = ("serious", "critical")
REQUIRED_RULES = ("heading-order", "page-has-heading-one")  # moderate, but promised
MAX_HEIGHT = 6_000  # pixels
# Elements of a page that must neither overlap nor reach beyond its edge.
BOXES = """() => {
  const width = document.documentElement.clientWidth;
  const selector = "h1, h2, [data-testid=stMetric], [data-testid=stDataFrame], [data-testid=stPlotlyChart], " +
    "[data-testid=stAlert], [data-testid=stButton] button, [data-testid=stButtonGroup], iframe";
  const boxes = [...document.querySelectorAll(`[data-testid=stMainBlockContainer] :is(${selector})`)]
    .filter((e) => e.checkVisibility({contentVisibilityAuto: true}))
    .map((e) => [e, e.getBoundingClientRect()]).filter(([, b]) => b.width > 1 && b.height > 1);
  const name = (e) => `${e.tagName} ${e.dataset.testid || ""} ${(e.textContent || "").slice(0, 40)}`;
  const wrong = boxes.filter(([, b]) => b.left < -1 || b.right > width + 1).map(([e]) => `cut: ${name(e)}`);
  boxes.forEach(([e, a], i) => boxes.slice(i + 1).forEach(([f, b]) => {
    if (e.contains(f) || f.contains(e)) return;
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (across > 2 && down > 2) wrong.push(`overlap: ${name(e)} / ${name(f)}`);
  }));
  return wrong;
}"""


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardProcess]:
    """A server over a finished run and a damaged one."""
    process = DashboardProcess(tmp_path_factory.mktemp("accessible"))
    with isolated_folders(process.folder):
        run_tournament(small_config(), process.runs / "good", device="cpu")
    shutil.copytree(process.runs / "good", process.runs / "damaged")
    (process.runs / "damaged" / "report.json").unlink()
    os.mkfifo(process.runs / "damaged" / "report.json")
    _trade(process.runs / "paper")
    Store(process.store).save(_universe())
    with process:
        yield process


def _trade(folder: Path) -> None:
    """Write the journal of an account that has traded for some days."""
    folder.mkdir()
    daemon = SimulatedDaemon(folder)
    daemon.day(date(2024, 1, 12))
    daemon.store.close()


def _universe() -> Panel:
    """Bars with open, high and low."""
    return dataclasses.replace(prices(date(2023, 1, 2), date(2023, 12, 29)), name=UNIVERSE)


# Each size and each scheme once: the widths decide about the layout, the schemes about the colours.
@pytest.fixture(scope="module", params=[("wide", "light"), ("narrow", "dark")], ids="-".join)
def context(request: pytest.FixtureRequest, browser: Browser) -> Iterator[BrowserContext]:
    """One context for all pages of a size and a scheme, whose cache holds Streamlit's scripts."""
    size, scheme = request.param
    width, height = SIZES[size]
    opened = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, is_mobile=False, bypass_csp=True
    )
    yield opened
    opened.close()


def violations(page: Page) -> list[str]:
    """Serious and critical violations, and headings out of order, each with its first element."""
    page.add_script_tag(path=AXE)
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations'], iframes: false})")["violations"]
    return [
        f"{rule['id']}: {rule['nodes'][0]['html'][:200]}"
        for rule in found
        if rule["impact"] in SERIOUS or rule["id"] in REQUIRED_RULES
    ]


def problems(page: Page) -> list[str]:
    """What is wrong with the page as it is drawn."""
    wait_until_drawn(page)
    assert page.get_by_test_id("stException").count() == 0
    size = page.viewport_size
    assert size is not None
    found = violations(page)
    show_whole_page(page, (size["width"], size["height"]), MAX_HEIGHT)
    page.wait_for_timeout(800)  # figures follow the size of the window
    found += page.evaluate(BOXES)
    page.set_viewport_size(size)
    return found


@pytest.mark.parametrize("name", [*PAGES, "run?name=damaged"])
def test_page_and_its_views_are_accessible_and_nothing_overlaps(
    name: str, context: BrowserContext, dashboard: DashboardProcess
) -> None:
    path = {"overview": "", "run": "run?name=good"}.get(name, name)
    page = context.new_page()
    page.goto(f"{dashboard.url}/{path}")
    found = problems(page)
    if name == "data":
        page.get_by_role("combobox", name="Panel").click()
        page.get_by_role("option", name=UNIVERSE).click()
        wait_until_drawn(page)
    for view in VIEWS.get(path, ()):
        main = page.get_by_test_id("stMainBlockContainer")
        if name == "paper":
            main.get_by_role("tab", name=view).click()
        else:
            main.get_by_test_id("stButtonGroup").get_by_text(view, exact=True).click()
        found += [f"{view}: {one}" for one in problems(page)]
    assert found == []
    page.close()


def test_report_in_a_tab_is_saved_as_pdf(dashboard: DashboardProcess, browser: Browser) -> None:
    context = browser.new_context()
    context.add_init_script("window.addEventListener('beforeprint', () => { window.printed = true; })")
    page = context.new_page()
    page.goto(f"{dashboard.url}/run?name=good")
    with context.expect_page() as opened:
        page.get_by_role("link", name="Open in a new tab").click()
    report = opened.value
    report.locator(".js-plotly-plot").first.wait_for()
    # Before the button: a dialogue that is open refuses to print again.
    assert report.pdf()[:4] == b"%PDF"
    report.get_by_role("button", name="Save as PDF").click()
    assert report.evaluate("window.printed === true")  # a sandbox without modals would ignore the button
    context.close()
