"""Chromium for tests of the dashboard; browser and server may only connect to the loopback interface."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

BROWSER_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT = 120_000  # milliseconds for an element to appear on a busy machine
ARGUMENTS = (
    "--no-sandbox",  # the tests may run as root in a container, and open local pages only
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)

expect.set_options(timeout=TIMEOUT)


def browser_path(play: Playwright) -> str:
    """Path of the browser. Fails without one: skipped tests would look as if they had passed."""
    found = next((path for name in BROWSER_NAMES if (path := shutil.which(name))), None)
    bundled = play.chromium.executable_path
    if found is None and not Path(bundled).is_file():
        pytest.fail(
            "the browser tests did NOT run: no Chromium is on the PATH; install one (make browser, or "
            "apt-get install chromium), or leave them out on purpose with -m 'not browser'",
            pytrace=False,
        )
    return found or bundled


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
    with sync_playwright() as play:
        launched = play.chromium.launch(executable_path=browser_path(play), args=list(ARGUMENTS))
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def browser_context(browser: Browser) -> BrowserContext:
    """One context for all tests, whose cache holds Streamlit's scripts. Each page in it is a separate session."""
    return browser.new_context(viewport={"width": 1440, "height": 1000})


@pytest.fixture
def open_page(browser_context: BrowserContext, tmp_path: Path) -> Iterator[Callable[[str], Page]]:
    """open_page(url) opens a page. Fails the test if a page contacted another host or raised a script error."""
    external_requests: list[str] = []
    script_errors: list[str] = []
    pages: list[Page] = []

    def open_at(url: str) -> Page:
        page = browser_context.new_page()
        pages.append(page)
        page.set_default_timeout(TIMEOUT)
        page.on("request", lambda r: None if _is_local(r.url) else external_requests.append(r.url))
        page.on("pageerror", lambda error: script_errors.append(str(error)))
        page.goto(url)
        return page

    yield open_at
    for number, page in enumerate(pages):  # for failed tests
        page.screenshot(path=tmp_path / f"page-{number}.png")
        page.close()
    assert external_requests == []
    assert script_errors == []


def _is_local(url: str) -> bool:
    return urlsplit(url).scheme in ("data", "blob", "about") or urlsplit(url).hostname == "127.0.0.1"
