"""The paper page in a browser with a running daemon: halt, resume, flatten, and a killed daemon."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.dashboard.dashboard_process import DashboardProcess
from tests.paper.process.harness import DaemonHarness

pytestmark = pytest.mark.browser

PASSWORD = "correct horse battery"
Opener = Callable[[str], Page]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonHarness]:
    """A daemon that has traded two sessions and waits for the next."""
    with DaemonHarness(tmp_path_factory.mktemp("daemon")) as harness:
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        harness.run_until(harness.days[1].close + 900, harness.slow_clock)
        yield harness


@pytest.fixture(scope="module")
def dashboard(harness: DaemonHarness, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardProcess]:
    with DashboardProcess(tmp_path_factory.mktemp("dashboard"), journal=harness.journal) as process:
        process.set_password(PASSWORD)
        yield process


@pytest.fixture
def page(dashboard: DashboardProcess, open_page: Opener) -> Page:
    opened = open_page(f"{dashboard.url}/paper")
    expect(opened.get_by_role("heading", name="Paper trading")).to_be_visible()
    return opened


def commands(journal: Path) -> list[tuple[str, str, str, str | None]]:
    """Name, user, address and outcome of each command, oldest first."""
    query = (
        "SELECT c.name, c.user, c.address, r.outcome FROM commands c LEFT JOIN command_results r "
        "ON r.command_id = c.id ORDER BY c.id"
    )
    with sqlite3.connect(f"file:{journal}?mode=ro", uri=True) as base:
        return base.execute(query).fetchall()


def badge(page: Page, name: str) -> Locator:
    return page.locator(f".st-key-status-{name}")


def open_form(page: Page, button: str, *, name: str, word: str, password: str) -> Locator:
    """Open a dialog and fill in its form; returns the dialog."""
    page.get_by_role("button", name=button).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Your name").fill(name)
    dialog.get_by_role("textbox", name=re.compile("^Type ")).fill(word)
    dialog.get_by_label("Password", exact=True).and_(dialog.locator("input")).fill(password)
    return dialog


def submit_form(page: Page, button: str, *, name: str, word: str, password: str) -> Locator:
    """Open a dialog, fill in its form and submit it; returns the dialog."""
    dialog = open_form(page, button, name=name, word=word, password=password)
    dialog.get_by_role("button", name=word.capitalize()).click()
    return dialog


def wait_for_retry(page: Page, seconds: float) -> None:
    """Wait until the next password is accepted: the server's rate limit runs in real time."""
    page.wait_for_timeout(1_000 * seconds + 500)


def test_account_status_orders_and_risk_are_shown(page: Page, harness: DaemonHarness) -> None:
    expect(badge(page, "trading")).to_contain_text("active")
    expect(badge(page, "daemon")).to_contain_text("Daemon: running")
    expect(badge(page, "reconciliation")).to_contain_text("Reconciled")
    equity = harness.query("SELECT equity FROM equity ORDER BY id DESC LIMIT 1")[0][0]
    expect(page.get_by_test_id("stMetricValue").first).to_have_text(f"${float(equity):,.0f}")
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    page.get_by_role("tab", name="Orders and fills").click()
    fills = harness.query("SELECT count(*) FROM fills")[0][0]
    assert fills > 0
    expect(page.get_by_role("heading", name=f"Fills: {fills}")).to_be_visible()
    page.get_by_role("tab", name="Costs").click()
    expect(page.get_by_text("Implementation shortfall of")).to_be_visible()
    page.get_by_role("tab", name="Risk").click()
    expect(page.get_by_text("Active since the start")).to_be_visible()


def test_halt_needs_one_confirmation_and_no_password(page: Page, harness: DaemonHarness) -> None:
    page.get_by_role("button", name="Halt").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("No more orders are sent")
    assert commands(harness.journal) == []  # opening the dialog submits nothing
    dialog.get_by_role("button", name="Halt now").click()
    expect(badge(page, "trading")).to_contain_text("halted")
    expect(page.get_by_text("halt: halted, no own order is live")).to_be_visible()
    name, user, address, outcome = commands(harness.journal)[-1]
    assert (name, address, outcome) == ("halt", "127.0.0.1", "halted, no own order is live")
    assert user


def test_resume_needs_the_typed_word_and_the_password(page: Page, harness: DaemonHarness) -> None:
    before = commands(harness.journal)
    dialog = submit_form(page, "Resume…", name="Ann", word="RESUME", password="a wrong password")
    expect(dialog).to_contain_text("wrong password")
    assert commands(harness.journal) == before
    expect(badge(page, "trading")).to_contain_text("halted")
    # During the wait, the correct password is refused as well.
    dialog.get_by_label("Password", exact=True).and_(dialog.locator("input")).fill(PASSWORD)
    dialog.get_by_role("textbox", name=re.compile("^Type ")).fill("resume, please")
    dialog.get_by_role("button", name="Resume").click()
    expect(dialog).to_contain_text("Type RESUME in the second field")
    wait_for_retry(page, 1)
    dialog.get_by_role("textbox", name=re.compile("^Type ")).fill("RESUME")
    dialog.get_by_role("button", name="Resume").click()
    expect(dialog).to_be_hidden()
    expect(badge(page, "trading")).to_contain_text("active")
    assert commands(harness.journal)[-1] == ("resume", "Ann", "127.0.0.1", "active")
    page.get_by_role("tab", name="Log").click()
    expect(page.get_by_role("heading", name=f"Commands: {len(before) + 1}")).to_be_visible()


def test_wrong_passwords_are_rate_limited_across_sessions(
    dashboard: DashboardProcess, open_page: Opener, harness: DaemonHarness
) -> None:
    before = commands(harness.journal)
    first, second = (open_page(f"{dashboard.url}/paper") for _ in range(2))
    other = open_form(second, "Resume…", name="Eve", word="RESUME", password=PASSWORD)
    dialog = open_form(first, "Resume…", name="Eve", word="RESUME", password="a wrong password")
    send = dialog.get_by_role("button", name="Resume")
    for wait in (1, 2):
        send.click()
        expect(dialog).to_contain_text(f"wrong password: try again in {wait} s")
        if wait < 2:
            wait_for_retry(first, wait)
    # The other session made no wrong guess and has the correct password, but must wait as well.
    other.get_by_role("button", name="Resume").click()
    expect(other).to_contain_text("too soon after a wrong password")
    assert commands(harness.journal) == before


def test_killed_daemon_is_shown_and_executes_pending_commands_on_restart(page: Page, harness: DaemonHarness) -> None:
    expect(badge(page, "daemon")).to_contain_text("Daemon: running")
    harness.kill()
    expect(badge(page, "daemon")).to_contain_text("Daemon: stopped")  # without interaction
    wait_for_retry(page, 2)
    submit_form(page, "Flatten…", name="Ann", word="FLATTEN", password=PASSWORD)
    expect(page.get_by_text("The daemon is stopped and will execute it when it starts.")).to_be_visible()
    assert commands(harness.journal)[-1] == ("flatten", "Ann", "127.0.0.1", None)
    page.reload()
    expect(page.get_by_text("The daemon is stopped and will execute it when it starts.")).to_be_visible()
    harness.launch()
    expect(badge(page, "trading")).to_contain_text("reducing", timeout=60_000)
    expect(badge(page, "daemon")).to_contain_text("Daemon: running")
    expect(page.get_by_text("will execute it when it starts")).to_be_hidden()
    assert re.fullmatch(r"\d+ positions are being sold", commands(harness.journal)[-1][3] or "")
