"""axe-core over every page, light and dark, wide and narrow; and the layout: nothing overlaps, nothing is cut."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from finrl_pod_app.dashboard.script.main import PAGES
from playwright.sync_api import Browser, BrowserContext, Page

from tests.browser.views import SCHEMES, SIZES, show_whole_page, wait_until_drawn
from tests.dashboard.dashboard_process import DashboardProcess

pytestmark = [pytest.mark.browser, pytest.mark.slow]

AXE = Path(__file__).parent / "vendor" / "axe.min.js"  # axe-core 4.14.1, MPL-2.0: see the licences beside it
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
    folder = tmp_path_factory.mktemp("accessible")
    process = DashboardProcess(folder)
    command = [sys.executable, "-m", "finrl_pod_app.cli.main", "demo", "--quick", "--out", str(process.runs / "good")]
    subprocess.run(command, env=process.environment, check=True, capture_output=True, cwd=folder)
    shutil.copytree(process.runs / "good", process.runs / "damaged")
    (process.runs / "damaged" / "report.json").unlink()
    os.mkfifo(process.runs / "damaged" / "report.json")
    with process:
        yield process


@pytest.fixture(params=[(size, scheme) for size in SIZES for scheme in SCHEMES], ids="-".join)
def context(request: pytest.FixtureRequest, browser: Browser) -> Iterator[BrowserContext]:
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


def check(context: BrowserContext, url: str, visit: Callable[[Page], None] = lambda _: None) -> list[str]:
    """What is wrong with a page in one size and colour scheme."""
    page = context.new_page()
    page.goto(url)
    wait_until_drawn(page)
    visit(page)
    assert page.get_by_test_id("stException").count() == 0
    size = page.viewport_size
    assert size is not None
    found = violations(page)
    show_whole_page(page, (size["width"], size["height"]), MAX_HEIGHT)
    page.wait_for_timeout(800)  # figures follow the size of the window
    found += page.evaluate(BOXES)
    page.close()
    return [f"{url}: {one}" for one in found]


@pytest.mark.parametrize("name", [*PAGES, "run?name=damaged"])
def test_page_is_accessible_and_nothing_overlaps(
    name: str, context: BrowserContext, dashboard: DashboardProcess
) -> None:
    path = {"overview": "", "run": "run?name=good"}.get(name, name)
    assert check(context, f"{dashboard.url}/{path}") == []
