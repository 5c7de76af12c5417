"""Several paper accounts: the choice on the paper page, and the overview."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from finrl_pod_app.dashboard.pages import paper_commands
from finrl_pod_app.dashboard.queries import paper_journal

from finrl_pod.paper.journal.commands import CommandName, CommandResult, enqueue, pending_commands, record_result
from finrl_pod.paper.journal.store import Store
from tests.dashboard.test_pages import texts
from tests.paper.factories import SimulatedDaemon

pytestmark = pytest.mark.slow


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    """A folder of runs with two paper accounts: one has traded for days, the other has not."""
    folder = tmp_path / "runs" / "paper"
    (folder / "old").mkdir(parents=True)
    daemon = SimulatedDaemon(folder / "old")
    daemon.day(date(2024, 1, 11))
    daemon.store.close()
    (folder / "new").mkdir()
    Store.create_or_open(folder / "new" / "journal.sqlite").close()
    return tmp_path / "runs"


def test_an_account_is_chosen_by_its_name(accounts: Path, visit: Callable[..., Any]) -> None:
    app = visit("paper", accounts, account="runs/paper/old")
    choice = app.selectbox(key="account")
    assert choice.options == ["runs/paper/new", "runs/paper/old"]
    assert choice.value == "runs/paper/old"
    assert "old/journal" in texts(app)
    app = choice.select("runs/paper/new").run()
    assert not app.exception
    assert "new/journal" in texts(app)
    assert "old/journal" not in texts(app)


def test_one_account_needs_no_choice(accounts: Path, visit: Callable[..., Any]) -> None:
    shutil.rmtree(accounts / "paper" / "new")
    assert "Account" not in [box.label for box in visit("paper", accounts).selectbox]


def test_overview_shows_every_account_despite_a_damaged_one(accounts: Path, visit: Callable[..., Any]) -> None:
    (accounts / "paper" / "bad").mkdir()
    (accounts / "paper" / "bad" / "journal.sqlite").write_bytes(b"not a journal")
    app = visit("overview", accounts)
    assert not app.exception
    assert "Paper accounts: 3" in [header.value for header in app.header]
    assert len([metric for metric in app.metric if metric.label == "Equity"]) == 2
    assert [error.value for error in app.error if "journal" in error.value]


def test_outcome_of_a_command_is_shown_for_its_account_only(accounts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    paths = [accounts / "paper" / name / "journal.sqlite" for name in ("old", "new")]
    for path in paths:
        store = Store.open(path)
        now = datetime.now(UTC)
        assert enqueue(store, CommandName.HALT, now, user="Ann") == 1
        record_result(store, pending_commands(store)[0], CommandResult("halted"), now)
        store.close()
    state: dict[str, Any] = {paper_commands._PENDING_COMMAND: (paths[0], 1)}
    monkeypatch.setattr(paper_commands.st, "session_state", state)
    monkeypatch.setattr(paper_commands.st, "toast", lambda text, **_: shown.append(text))
    paper_commands.show_command_outcome(paper_journal.load(paths[1]))
    assert shown == []
    paper_commands.show_command_outcome(paper_journal.load(paths[0]))
    assert len(shown) == 1
    assert state == {}
