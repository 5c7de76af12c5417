"""A real browser on a dashboard that really runs. Nothing but the loopback is reached, by either."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, Page, Playwright, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SIGHT = 120_000  # milliseconds for something to be seen, on a machine that is busy
ARGUMENTS = (
    "--no-sandbox",  # in a container the tests run as root, and on pages of our own alone
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)

expect.set_options(timeout=SIGHT)


def browser_path(play: Playwright) -> str:
    """The browser to drive. A missing one fails: tests that did not run must not look as if they passed."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    own = play.chromium.executable_path
    if found is None and not Path(own).is_file():
        pytest.fail(
            "the browser tests did NOT run: no Chromium is on the PATH; install one (make browser, or "
            "apt-get install chromium), or leave them out on purpose with -m 'not browser'",
            pytrace=False,
        )
    return found or own


@pytest.fixture(scope="session")
def window() -> Iterator[BrowserContext]:
    """One for all tests: its cache spares each of them Streamlit's scripts. A page in it is a session of its own."""
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=browser_path(play), args=list(ARGUMENTS))
        yield opened.new_context(viewport={"width": 1440, "height": 1000})
        opened.close()


@pytest.fixture
def open_page(window: BrowserContext, tmp_path: Path) -> Iterator[Callable[[str], Page]]:
    """Opens pages. Fails a test of whose pages one asked another host, or raised in its scripts."""
    foreign: list[str] = []
    raised: list[str] = []
    opened: list[Page] = []

    def open_at(url: str) -> Page:
        page = window.new_page()
        opened.append(page)
        page.set_default_timeout(SIGHT)
        page.on("request", lambda r: None if _own(r.url) else foreign.append(r.url))
        page.on("pageerror", lambda error: raised.append(str(error)))
        page.goto(url)
        return page

    yield open_at
    for number, page in enumerate(opened):  # to be looked at when a test failed
        page.screenshot(path=tmp_path / f"page-{number}.png")
        page.close()
    assert foreign == []
    assert raised == []


def _own(url: str) -> bool:
    return urlsplit(url).scheme in ("data", "blob", "about") or urlsplit(url).hostname == "127.0.0.1"
