"""The paper page's frames, against the daemon's own account and plain arithmetic."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from finrl_pod_app.dashboard.queries import paper_account, paper_costs, paper_journal, paper_state, paper_tracking
from finrl_pod_app.dashboard.queries.paper_journal import Journal

from finrl_pod.errors import JournalError, RunError
from finrl_pod.files import write_json
from finrl_pod.paper.brokers.port import Clock
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.book import Loss
from finrl_pod.paper.journal.commands import Answer, CommandName, answer, ask, pending
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.monitoring.status import status
from finrl_pod.paper.runtime.build import keep
from finrl_pod.paper.settings import BrokerSettings, OrderSettings, OutsideSettings, PaperConfig, TimingSettings
from finrl_pod.types import Panel
from tests.paper.made import Sparing, World, config

NOW = datetime(2024, 1, 31, 22, tzinfo=UTC)


class Dear(Sparing):
    """Charges 7 basis points, as the settings say."""

    def __init__(self, panel: Panel, clock: Clock, cash: Decimal) -> None:
        super().__init__(panel, clock, cash, Decimal("0.0007"))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two weeks of daily purchases and sales in fractions, each filled in part, with costs."""
    folder = tmp_path_factory.mktemp("paper")
    settings = config(
        orders=OrderSettings(fractional=True, collar=0.2),
        broker=BrokerSettings(kind="simulated", cost_bps=7.0),
        outside=OutsideSettings(heartbeat=str(folder / "heartbeat.json")),
        timing=TimingSettings(poll=1800.0),
    )
    made = World(folder, settings, kind=Dear)
    keep(made.store, settings, made.clock.now())
    made.day(date(2024, 1, 19), hour=15)  # in mid-session: orders are still under way
    yield made
    made.store.close()


@pytest.fixture(scope="module")
def journal(world: World) -> Journal:
    return paper_journal.load(world.journal)


@pytest.fixture
def empty(tmp_path: Path) -> Journal:
    Store.create_or_open(tmp_path / "journal.sqlite").close()
    return paper_journal.load(tmp_path / "journal.sqlite")


def test_a_damaged_journal_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Store.create_or_open(path).close()
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE fills")
    connection.commit()
    connection.close()
    with pytest.raises(JournalError, match=r"cannot be read \(.*no such table: fills.*\): check the file and its disk"):
        paper_journal.load(path)


def test_positions_are_those_of_the_daemon(world: World, journal: Journal) -> None:
    frame = paper_account.positions(journal)
    own = {symbol: shares for symbol, shares in world.daemon.trader.positions.items() if shares}
    assert len(own) >= 2
    shown = dict(zip(frame.symbol, frame.shares, strict=True))
    assert {s: Decimal(str(q)) for s, q in shown.items() if q} == own
    assert journal.cash == pytest.approx(float(world.daemon.trader.cash), abs=1e-6)


def test_gains_add_up_to_what_the_account_made(world: World, journal: Journal) -> None:
    frame = paper_account.positions(journal)
    worth = float(world.daemon.trader.equity())
    assert frame.gain.fillna(0.0).sum() + frame.realised.sum() == pytest.approx(worth - journal.capital, abs=1e-6)
    assert frame.realised.abs().max() > 1  # something was sold, not at what was paid
    assert frame.weight.sum() + journal.cash / worth == pytest.approx(1.0)


def test_average_cost_is_that_of_a_plain_account(journal: Journal) -> None:
    """By the textbook: a purchase moves the average, a sale does not."""
    for row in paper_account.positions(journal).itertuples():
        if not row.shares:
            continue
        shares = average = 0.0
        for fill in journal.fills[journal.fills.symbol == row.symbol].itertuples():
            if fill.side == "buy":
                average = (shares * average + fill.quantity * fill.price) / (shares + fill.quantity)
                shares += fill.quantity
            else:
                shares -= fill.quantity
                average = average if shares > 1e-9 else 0.0
        assert row.average == pytest.approx(average, rel=1e-9)


def test_a_split_and_a_dividend_move_shares_and_income_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.day(date(2024, 1, 11))
    before = paper_account.positions(paper_journal.load(world.journal)).set_index("symbol")
    symbol = before.index[before.shares > 0][0]
    values = {"symbol": symbol, "ex_date": "2024-01-12", "foreign_change": "0", "detail": ""}
    more = str(Decimal(str(before.shares[symbol])))
    world.store.add(
        schema.corporate_actions, NOW, action_id="s", kind="split", own_change=more, cash="0", **values
    )  # two for one
    world.store.add(
        schema.corporate_actions, NOW, action_id="d", kind="cash_dividend", own_change="0", cash="12.5", **values
    )
    after = paper_account.positions(paper_journal.load(world.journal)).set_index("symbol")
    assert after.shares[symbol] == 2 * before.shares[symbol]
    assert after.average[symbol] == pytest.approx(before.average[symbol] / 2)
    assert after.realised[symbol] == pytest.approx(before.realised[symbol] + 12.5)
    world.store.close()


def test_shares_that_others_sold_count_as_sold_for_what_they_brought(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.day(date(2024, 1, 11))
    before = paper_account.positions(paper_journal.load(world.journal)).set_index("symbol")
    symbol = before.index[before.shares > 0][0]
    sold = before.shares[symbol] - 1
    loss = Loss(symbol, Decimal(str(sold)), Decimal(str(sold)) * 70)
    with world.store.write() as connection:
        world.daemon._p.book.write_loss(connection, loss, NOW)
    after = paper_account.positions(paper_journal.load(world.journal)).set_index("symbol")
    assert after.shares[symbol] == 1
    assert after.average[symbol] == pytest.approx(before.average[symbol])
    gain = sold * (70 - before.average[symbol])
    assert after.realised[symbol] == pytest.approx(before.realised[symbol] + gain)
    world.store.close()


def test_slippage_is_that_of_the_status(world: World, journal: Journal) -> None:
    known = status(world.store, world.config)["slippage"]
    costs = paper_costs.slippage(journal)
    assert costs.realised == pytest.approx(known["realised_bps"], rel=1e-9)
    assert (costs.modelled, costs.fills) == (7.0, int(known["fills"]))
    sessions = paper_costs.by_session(journal)
    assert sessions.so_far.iloc[-1] == pytest.approx(costs.realised)
    assert paper_costs.by_symbol(journal).moved.sum() == pytest.approx(sessions.moved.sum())
    assert costs.fees == pytest.approx(7.0, rel=0.05)  # charged on what filled, not on the decision's price


def test_the_error_of_slippage_is_that_of_redrawn_sessions(journal: Journal) -> None:
    sessions = paper_costs.by_session(journal)
    draw = np.random.default_rng(0).integers(0, len(sessions), (20_000, len(sessions)))
    moved, value = sessions.moved.to_numpy()[draw].sum(1), sessions.value.to_numpy()[draw].sum(1)
    n = len(sessions)
    redrawn = float(np.std(moved / value) * 10_000 * np.sqrt(n / (n - 1)))
    assert paper_costs.slippage(journal).error == pytest.approx(redrawn, rel=0.1)


def test_what_is_under_way_is_what_the_book_has_open(world: World, journal: Journal) -> None:
    frame = paper_account.under_way(journal)
    known = status(world.store, world.config)["open_intents"]
    assert len(frame) == len(known) > 0
    for row, other in zip(frame.itertuples(), known, strict=True):
        assert (row.symbol, row.side, row.wanted) == (other["symbol"], other["side"], float(other["quantity"]))
        assert row.filled == pytest.approx(float(other["filled"]))


def test_orders_and_fills_are_told_newest_first(world: World, journal: Journal) -> None:
    orders, fills = paper_account.orders(journal), paper_account.fills(journal)
    assert len(orders) == world.store.count(schema.orders)
    assert len(fills) == world.store.count(schema.fills)
    assert orders["at"].is_monotonic_decreasing
    assert (orders.filled <= orders.quantity).all()


def test_losses_are_those_that_the_limits_look_at(world: World, journal: Journal) -> None:
    marks = [float(row.equity) for row in world.store.rows(schema.equity)]
    day, fall = paper_state.losses(journal)
    assert day == pytest.approx(max(0.0, 1 - marks[-1] / marks[-2]))
    assert fall == pytest.approx(max(0.0, 1 - marks[-1] / max(*marks, 100_000.0)))
    limits = paper_state.limits(journal).set_index("limit")
    assert limits.allowed["loss of the day"] == 0.9
    assert limits.used["gross exposure"] == pytest.approx(paper_account.positions(journal).weight.sum())
    summary = paper_state.summary(journal)
    assert summary.day == pytest.approx(marks[-1] / marks[-2] - 1)
    assert summary.total == pytest.approx(marks[-1] / 100_000 - 1)


@pytest.mark.parametrize(
    ("age", "level", "words"),
    [(0.5, "good", "alive and trading"), (20.0, "warning", "20 s ago"), (7200.0, "bad", "silent for 2 h")],
)
def test_the_heartbeat_is_told_by_its_age(journal: Journal, age: float, level: str, words: str) -> None:
    assert journal.config is not None
    beat = {"at": (NOW - timedelta(seconds=age)).isoformat(), "pid": os.getpid(), "trading": True}
    Path(journal.config.outside.heartbeat).write_text(json.dumps(beat))
    sign = paper_state.heartbeat(journal, NOW)
    assert sign.level == level
    assert words in sign.words


def test_a_daemon_whose_process_ended_is_told_at_once(journal: Journal) -> None:
    assert journal.config is not None
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    beat = {"at": (NOW - timedelta(seconds=4)).isoformat(), "pid": ended.pid, "trading": True}
    Path(journal.config.outside.heartbeat).write_text(json.dumps(beat))
    sign = paper_state.heartbeat(journal, NOW)
    assert (sign.level, sign.words) == ("bad", "its process ended; last sign of life 4 s ago")


@pytest.mark.parametrize("content", [None, "{}", "no json", '{"at": "yesterday", "trading": true}'])
def test_a_heartbeat_that_is_none_is_no_sign_of_life(journal: Journal, content: str | None) -> None:
    assert journal.config is not None
    file = Path(journal.config.outside.heartbeat)
    file.unlink(missing_ok=True)
    if content is not None:
        file.write_text(content)
    assert paper_state.heartbeat(journal, NOW).level == "bad"


@pytest.mark.parametrize(
    ("bar", "now", "behind"),
    [
        ("2024-01-12", datetime(2024, 1, 15, 12, tzinfo=UTC), 0),  # a Monday that is a holiday
        ("2024-01-12", datetime(2024, 1, 16, 20, tzinfo=UTC), 0),  # before the close
        ("2024-01-12", datetime(2024, 1, 16, 22, tzinfo=UTC), 1),
        ("2024-01-12", datetime(2024, 1, 18, 22, tzinfo=UTC), 3),
    ],
)
def test_prices_are_behind_by_sessions_of_the_exchange(bar: str, now: datetime, behind: int) -> None:
    assert paper_state.sessions_behind(bar, now) == behind


def test_a_command_waits_until_it_is_answered(tmp_path: Path) -> None:
    store = Store.create_or_open(tmp_path / "journal.sqlite")
    ask(store, CommandName.HALT, NOW - timedelta(seconds=30), user="Ann", address="192.0.2.7")
    journal = paper_journal.load(store.path)
    assert "Waiting since 30 s: halt" in paper_state.waiting(journal, NOW)
    row = paper_state.commands(journal).iloc[0]
    assert (row["name"], row.user, row.address, row.waiting) == ("halt", "Ann", "192.0.2.7", True)
    answer(store, pending(store)[0], Answer("halted"), NOW)
    journal = paper_journal.load(store.path)
    assert paper_state.waiting(journal, NOW) == ""
    assert paper_state.commands(journal).iloc[0].outcome == "halted"
    store.close()


def test_a_difference_from_the_broker_is_told_until_it_is_accepted(tmp_path: Path) -> None:
    store = Store.create_or_open(tmp_path / "journal.sqlite")
    store.add(schema.alerts, NOW, level="critical", kind="mismatch", message="AAPL: 5 in the journal, 6 at the broker")
    sign = paper_state.agreement(paper_journal.load(store.path))
    assert sign.level == "bad"
    assert "AAPL" in sign.words
    ask(store, CommandName.ACKNOWLEDGE, NOW)
    assert paper_state.agreement(paper_journal.load(store.path)).level == "bad"
    answer(store, pending(store)[0], Answer("accepted"), NOW + timedelta(seconds=1))
    assert paper_state.agreement(paper_journal.load(store.path)).level == "good"
    store.close()


def test_tracking_is_the_difference_in_growth(world: World) -> None:
    sessions = list(paper_journal.load(world.journal).equity.session)
    replayed = [100_000.0 * 1.001**n for n in range(len(sessions) - 1)]  # the last session came after the replay
    file = world.journal.with_name("journal.tracking.json")
    document = {"made": "2024-02-01T00:00:00+00:00", "strategy": "rotating", "sessions": sessions[:-1]}
    write_json(file, {**document, "backtest": replayed, "differences": []})
    journal = paper_journal.load(world.journal)
    found = paper_tracking.tracking(journal)
    mine = journal.equity.equity.to_numpy()[:-1]
    expected = (mine[-1] / mine[0] - replayed[-1] / replayed[0]) * 10_000
    assert found.end == pytest.approx(expected)
    daily = np.diff(mine) / mine[:-1] - 0.001
    assert found.error == pytest.approx(np.std(daily, ddof=1) * np.sqrt(252) * 10_000)
    assert found.behind == 1
    write_json(file, {**document, "backtest": [1.0]})
    with pytest.raises(RunError, match="is damaged"):
        paper_tracking.tracking(journal)
    file.unlink()
    assert not paper_tracking.tracking(journal).known


def test_an_empty_journal_has_empty_frames(empty: Journal) -> None:
    assert paper_account.positions(empty).empty
    assert paper_account.orders(empty).empty
    assert paper_account.fills(empty).empty
    assert paper_account.under_way(empty).empty
    assert paper_account.foreign(empty).empty
    assert paper_costs.slippage(empty).fills == 0
    assert paper_state.limits(empty).empty
    assert paper_state.halted_symbols(empty).empty
    assert paper_state.losses(empty) == (0.0, 0.0)
    assert [sign.level for sign in paper_state.signs(empty, NOW)] == ["unknown", "unknown", "good"]
    assert not paper_tracking.tracking(empty).known
    assert empty.state == ("active", "")
    assert "not seen yet" in paper_state.footer(empty)


def test_a_journal_is_read_again_only_after_a_write(world: World) -> None:
    first = paper_journal.load(world.journal)
    assert paper_journal.load(world.journal) is first
    world.store.add(schema.alerts, NOW, level="info", kind="test", message="new")
    assert paper_journal.load(world.journal) is not first


def test_what_a_decision_left_alone_is_told_in_words(tmp_path: Path) -> None:
    store = Store.create_or_open(tmp_path / "journal.sqlite")
    for day, detail in ((2, "{}"), (3, '{"AA": "no bar", "BB": "halted"}'), (4, "the broker did not answer"), (5, "3")):
        values = {"run": "r", "strategy": "s", "feed": "f", "inputs": "{}", "outcome": "orders", "detail": detail}
        store.add(schema.decisions, NOW, bar=f"2024-01-{day:02d}", **values)
    store.close()
    told = list(paper_state.decisions(paper_journal.load(store.path)).detail)
    assert told == ["3", "the broker did not answer", "AA: no bar; BB: halted", ""]


def test_settings_go_through_the_journal(tmp_path: Path) -> None:
    settings = PaperConfig(
        name="kept", strategy="buy_and_hold", symbols=("A", "B"), journal=str(tmp_path / "j"),
        outside=OutsideSettings(webhook="https://example.org/secret-token"),
    )  # fmt: skip
    store = Store.create_or_open(tmp_path / "j")
    for _ in range(3):
        keep(store, settings, NOW)
    assert store.count(schema.settings) == 1
    found = paper_journal.load(store.path).config
    assert found is not None
    assert (found.name, found.symbols, found.outside.webhook) == ("kept", ("A", "B"), "")
    store.close()
    assert b"secret-token" not in (tmp_path / "j").read_bytes()
