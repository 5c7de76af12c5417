"""The views that browser tests and screenshots share: pages, widths, colour schemes, and waiting until one is drawn."""

from __future__ import annotations

from playwright.sync_api import Page

WIDE, NARROW = (1440, 900), (390, 844)
SIZES = {"wide": WIDE, "narrow": NARROW}
SCHEMES = ("light", "dark")
UNFINISHED = (
    "[data-testid*=Skeleton], [data-testid=stSpinner], [data-testid=stStatusWidget], [data-stale=true], "
    "[data-testid=stApp][data-test-script-state=running]"
)
STILL_FOR = 3  # looks in a row at an unchanged page
LOOK_INTERVAL = 400  # milliseconds
TIMEOUT = 180_000  # milliseconds


def wait_until_drawn(page: Page) -> None:
    """Wait until the server has drawn everything, no placeholder is left, and the text does not change."""
    page.get_by_test_id("stMainBlockContainer").wait_for(timeout=TIMEOUT)
    still, last = 0, None
    for _ in range(TIMEOUT // LOOK_INTERVAL):
        look = "s => [document.body.textContent.length, document.querySelectorAll(s).length]"
        now = page.evaluate(look, UNFINISHED)
        still = still + 1 if now == last and now[1] == 0 else 0
        if still >= STILL_FOR:
            return
        last = now
        page.wait_for_timeout(LOOK_INTERVAL)
    raise AssertionError(f"{page.url} is not drawn after {TIMEOUT // 1000} s")


def show_whole_page(page: Page, size: tuple[int, int], max_height: int) -> None:
    """Make the window as high as the page, which Streamlit scrolls inside an element."""
    height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    page.set_viewport_size({"width": size[0], "height": min(max(int(height), size[1]), max_height)})
