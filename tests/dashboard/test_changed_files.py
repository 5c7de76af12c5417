"""Pages after a file of a run or an account has changed: the next rerun shows the change, not what was cached."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.queries import paper_account, paper_journal, paper_performance, paper_state
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from finrl_pod.files import write_json
from tests.paper.factories import SimulatedDaemon

pytestmark = pytest.mark.slow


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, the only one in its parent."""
    return Path(shutil.copytree(finished, tmp_path / "runs" / "mine"))


def figures(app: Any) -> list[str]:
    """The figures of a page as JSON, in order."""
    assert not app.exception
    assert not app.error
    return [str(chart.proto.spec) for chart in app.get("plotly_chart")]


def again(app: Any) -> Any:
    """The page drawn again, more than a second later, when the folder of runs is searched again."""
    cached.found_runs.clear()
    return app.run()


def scale_tensors(file: Path, ending: str, factor: float) -> None:
    """Multiply the second half of the tensors whose names have an ending, and keep the file's metadata."""
    with safe_open(file, "np") as opened:
        metadata = opened.metadata()
    tensors = load_file(file)
    for name in tensors:
        if name.endswith(ending):
            tensors[name][len(tensors[name]) // 2 :] *= factor
    save_file(tensors, file, metadata)


def test_figures_of_a_run_follow_its_curves(run: Path, visit: Callable[..., Any]) -> None:
    app = visit("run", run.parent, name="mine")
    before = figures(app)
    assert before
    assert figures(again(app)) == before
    scale_tensors(run / "curves.safetensors", "0.equity", 1.5)
    assert figures(again(app)) != before


@pytest.mark.parametrize("view", ["Allocation", "Profit", "Reasons"])
def test_other_views_of_a_run_follow_its_files(view: str, run: Path, visit: Callable[..., Any]) -> None:
    app = visit("run", run.parent, name="mine")
    app = app.segmented_control(key="view").set_value(view).run()
    before = figures(app)
    assert before
    if view == "Allocation":
        scale_tensors(run / "curves.safetensors", "weights", 0.5)
    elif view == "Reasons":
        report = json.loads((run / "report.json").read_text())
        report["score_attribution"]["assets"].reverse()
        (run / "report.json").write_text(json.dumps(report))
    else:
        report = json.loads((run / "report.json").read_text())
        profits = report["attribution"]["by_asset"]
        report["attribution"]["by_asset"] = {symbol: 2 * profit for symbol, profit in profits.items()}
        (run / "report.json").write_text(json.dumps(report))
    assert figures(again(app)) != before


def test_figures_of_a_training_follow_its_generations(run: Path, visit: Callable[..., Any]) -> None:
    app = visit("run", run.parent, name="mine")
    app = app.segmented_control(key="view").set_value("Training").run()
    _, curve, scores, lineage, *_ = before = figures(app)  # after the histogram of the verdict
    assert figures(again(app)) == before
    newest = sorted((run / "metrics").glob("*.json"))[-1]
    generation = json.loads(newest.read_text())
    for row in generation["rows"]:
        row["reward"] = [None if value is None else value + 1 for value in row["reward"]]
    for agent in generation["agents"]:
        agent["score"] = (agent["score"] or 0.0) + 1
    newest.write_text(json.dumps(generation))
    state = json.loads((run / "state.json").read_text())
    for agent in (*state["leaderboard"], *state["current"]):
        agent["score"] = (agent["score"] or 0.0) + 1
    (run / "state.json").write_text(json.dumps(state))
    after = figures(again(app))
    assert [new != old for new, old in zip(after[1:4], (curve, scores, lineage), strict=True)] == [True] * 3


def test_the_base_portfolio_follows_the_report(run: Path, visit: Callable[..., Any]) -> None:
    app = visit("run", run.parent, name="mine")
    app = app.segmented_control(key="view").set_value("Training").run()
    before = figures(app)
    report = json.loads((run / "report.json").read_text())
    report["base_score"] += 0.5
    (run / "report.json").write_text(json.dumps(report))
    after = figures(again(app))
    assert after[:2] == before[:2]
    assert after[2] != before[2]


@pytest.fixture
def account(tmp_path: Path) -> Any:
    """A daemon that has traded for days, in a folder of accounts."""
    folder = tmp_path / "runs" / "paper" / "own"
    folder.mkdir(parents=True)
    daemon = SimulatedDaemon(folder)
    daemon.day(date(2024, 1, 11))
    yield daemon
    daemon.store.close()


def test_the_paper_page_follows_the_journal_and_the_replay(account: Any, visit: Callable[..., Any]) -> None:
    app = visit("paper", account.journal.parents[2])
    before = figures(app)
    assert figures(app.run()) == before
    account.day(date(2024, 1, 12))
    after = figures(app.run())
    assert after[0] != before[0]
    sessions = list(paper_journal.load(account.journal).equity.session)
    document = {"made": "2024-02-01T00:00:00+00:00", "strategy": "replayed", "differences": [], "sessions": sessions}
    for end in (101_000.0, 102_000.0):
        backtest = [100_000.0, *[end] * (len(sessions) - 1)]
        write_json(account.journal.with_name("journal.tracking.json"), {**document, "backtest": backtest})
        before, after = after, figures(app.run())
        assert after[0] != before[0]


def test_queries_of_an_account_follow_its_journal(account: Any) -> None:
    queries = (
        paper_account.orders,
        paper_account.fills,
        paper_account.positions,
        paper_performance.slippage,
        lambda journal: paper_performance.slippage_by(journal, "symbol"),
        paper_performance.backtest_difference,
        paper_state.summary,
    )
    journal = paper_journal.load(account.journal)
    before = [query(journal) for query in queries]
    assert all(query(journal) is found for query, found in zip(queries, before, strict=True))
    cash = journal.cash
    account.day(date(2024, 1, 12))
    changed = paper_journal.load(account.journal)
    after = [query(changed) for query in queries]
    assert len(after[0]) > len(before[0])
    assert len(after[1]) > len(before[1])
    assert after[3].fills > before[3].fills
    assert after[4].fills.sum() > before[4].fills.sum()
    assert len(after[5].curve) > len(before[5].curve)
    assert after[6].session > before[6].session
    assert changed.cash != cash


def test_figures_of_two_accounts_are_told_apart(account: Any, tmp_path: Path, visit: Callable[..., Any]) -> None:
    other = tmp_path / "runs" / "paper" / "other"
    other.mkdir()
    daemon = SimulatedDaemon(other)
    daemon.day(date(2024, 1, 10))
    daemon.store.close()
    runs = account.journal.parents[2]
    one, two = (figures(visit("paper", runs, account=f"runs/paper/{name}")) for name in ("own", "other"))
    assert len(one) == len(two)
    assert all(mine != theirs for mine, theirs in zip(one, two, strict=True))
    assert figures(visit("paper", runs, account="runs/paper/own")) == one
