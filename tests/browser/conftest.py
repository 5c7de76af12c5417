"""A real browser on a dashboard that really runs. Nothing but the loopback is reached, by either."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Playwright, expect, sync_playwright

ROOT = Path(__file__).parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 60.0  # seconds for a server to come up
SIGHT = 20_000  # milliseconds for something to be seen, on a machine that is busy
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


class Dashboard:
    """`finrl-pod dashboard` as a process."""

    def __init__(self, folder: Path, *arguments: str, journal: Path | None = None) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.runs = folder / "runs"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        named = [] if journal is None else ["--journal", str(journal)]
        self._command = [
            *(sys.executable, "-m", "finrl_pod_app.cli.main", "dashboard", "--port", str(self.port)),
            *("--runs", str(self.runs), *named, *arguments),
        ]

    @property
    def environment(self) -> dict[str, str]:
        roots = os.pathsep.join(str(ROOT / part) for part in (".", "envs", "strategies", "app"))
        return {**os.environ, "FINRL_POD_HOME": str(self.home), "PYTHONPATH": roots}

    def __enter__(self) -> Dashboard:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "dashboard.log").open("w") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self.folder, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/_stcore/health", timeout=2):
                    return self
            except OSError:
                time.sleep(0.1)
        raise AssertionError((self.folder / "dashboard.log").read_text())

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        log = (self.folder / "dashboard.log").read_text()
        assert "Error" not in log and "Traceback" not in log, log

    def set_password(self, text: str) -> None:
        command = [sys.executable, "-m", "finrl_pod_app.cli.main", "dashboard", "set-password", "--stdin"]
        subprocess.run(command, input=f"{text}\n", text=True, env=self.environment, check=True, capture_output=True)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=browser_path(play), args=list(ARGUMENTS))
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Browser, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Page]]:
    """Opens a page in a browser of its own. Fails a test whose page asked another host, or raised in its scripts."""
    foreign: list[str] = []
    raised: list[str] = []
    contexts = []

    def open_at(url: str) -> Page:
        context = browser.new_context(viewport={"width": 1440, "height": 1000})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(SIGHT)
        page.on("request", lambda r: None if _own(r.url) else foreign.append(r.url))
        page.on("pageerror", lambda error: raised.append(str(error)))
        page.goto(url)
        return page

    yield open_at
    for number, context in enumerate(contexts):
        for page in context.pages:  # to be looked at when a test failed
            page.screenshot(path=tmp_path / f"page-{number}.png")
        context.close()
    assert foreign == []
    assert raised == []


def _own(url: str) -> bool:
    return urlsplit(url).scheme in ("data", "blob", "about") or urlsplit(url).hostname == "127.0.0.1"
