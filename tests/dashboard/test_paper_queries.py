"""Queries of the paper page, against the daemon's own account and independent arithmetic."""

from __future__ import annotations

import dataclasses
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finrl_pod_app.dashboard.queries import paper_account, paper_journal, paper_performance, paper_state
from finrl_pod_app.dashboard.queries.paper_journal import Journal

from finrl_pod.errors import JournalError, RunError
from finrl_pod.files import write_json
from finrl_pod.paper.domain.port import Clock
from finrl_pod.paper.domain.schedule import Calendar, calendar_of
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import CommandName, CommandResult, enqueue, pending_commands, record_result
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.monitoring.status import status
from finrl_pod.paper.runtime.daemon import record_settings
from finrl_pod.paper.settings import (
    BrokerSettings,
    MonitoringSettings,
    OrderSettings,
    PaperConfig,
    StrategyConfig,
    TimingSettings,
)
from finrl_pod.types import Panel
from tests.paper.factories import PartialFillBroker, SimulatedDaemon, config, write_off

NOW = datetime(2024, 1, 31, 22, tzinfo=UTC)


class BrokerWithCosts(PartialFillBroker):
    """Charges 7 basis points, like the settings."""

    def __init__(self, panel: Panel, clock: Clock, cash: Decimal) -> None:
        super().__init__(panel, clock, cash, Decimal("0.0007"))


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedDaemon]:
    """Two weeks of daily trades in fractional shares, partially filled, with costs."""
    folder = tmp_path_factory.mktemp("paper")
    settings = config(
        orders=OrderSettings(fractional=True, collar=0.2),
        broker=BrokerSettings(kind="simulated", cost_bps=7.0),
        monitoring=MonitoringSettings(heartbeat=str(folder / "heartbeat.json")),
        timing=TimingSettings(poll=1800.0),
    )
    simulation = SimulatedDaemon(folder, settings, kind=BrokerWithCosts)
    record_settings(simulation.store, settings, simulation.clock.now())
    simulation.day(date(2024, 1, 19), hour=15)  # mid-session, with open orders
    yield simulation
    simulation.store.close()


@pytest.fixture(scope="module")
def journal(sim: SimulatedDaemon) -> Journal:
    return paper_journal.load(sim.journal)


@pytest.fixture
def empty(tmp_path: Path) -> Journal:
    Store.create_or_open(tmp_path / "journal.sqlite").close()
    return paper_journal.load(tmp_path / "journal.sqlite")


def test_damaged_journal_raises(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Store.create_or_open(path).close()
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE fills")
    connection.commit()
    connection.close()
    with pytest.raises(JournalError, match=r"cannot be read \(.*no such table: fills.*\): check the file and its disk"):
        paper_journal.load(path)


def test_positions_match_the_daemon(sim: SimulatedDaemon, journal: Journal) -> None:
    frame = paper_account.positions(journal)
    own = {symbol: shares for symbol, shares in sim.daemon.trader.positions.items() if shares}
    assert len(own) >= 2
    shown = dict(zip(frame.symbol, frame.shares, strict=True))
    assert {s: Decimal(str(q)) for s, q in shown.items() if q} == own
    assert journal.cash == pytest.approx(float(sim.daemon.trader.cash), abs=1e-6)


def test_gains_sum_to_the_change_in_equity(sim: SimulatedDaemon, journal: Journal) -> None:
    frame = paper_account.positions(journal)
    market_value = float(sim.daemon.trader.equity())
    assert frame.gain.fillna(0.0).sum() + frame.realised.sum() == pytest.approx(
        market_value - journal.capital, abs=1e-6
    )
    assert frame.realised.abs().max() > 1  # some sales had a gain or loss
    held = frame[frame.shares > 0]
    assert len(held)
    assert held.gain_share.tolist() == pytest.approx((held.price / held.average - 1).tolist())
    assert held.distance.tolist() == pytest.approx((held.weight - held.target).tolist(), nan_ok=True)
    assert frame.weight.sum() + journal.cash / market_value == pytest.approx(1.0)


def test_average_cost_matches_an_independent_computation(journal: Journal) -> None:
    """Buys change the average cost, sales do not."""
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


@pytest.mark.slow
def test_split_changes_shares_and_dividend_changes_realised_gain(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(date(2024, 1, 11))
    before = paper_account.positions(paper_journal.load(sim.journal)).set_index("symbol")
    symbol = before.index[before.shares > 0][0]
    values = {"symbol": symbol, "ex_date": "2024-01-12", "foreign_change": "0", "foreign_cash": "0", "detail": ""}
    more = str(Decimal(str(before.shares[symbol])))
    sim.store.add(
        schema.corporate_actions, NOW, action_id="s", kind="split", own_change=more, cash="0", **values
    )  # two for one
    sim.store.add(
        schema.corporate_actions, NOW, action_id="d", kind="cash_dividend", own_change="0", cash="12.5", **values
    )
    after = paper_account.positions(paper_journal.load(sim.journal)).set_index("symbol")
    assert after.shares[symbol] == 2 * before.shares[symbol]
    assert after.average[symbol] == pytest.approx(before.average[symbol] / 2)
    assert after.realised[symbol] == pytest.approx(before.realised[symbol] + 12.5)
    sim.store.close()


@pytest.mark.slow
def test_externally_sold_shares_count_as_sold(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(date(2024, 1, 11))
    before = paper_account.positions(paper_journal.load(sim.journal)).set_index("symbol")
    symbol = before.index[before.shares > 0][0]
    sold = before.shares[symbol] - 1
    sim.daemon._c.ledger.book(write_off(symbol, Decimal(str(sold)), Decimal(str(sold)) * 70, NOW), NOW)
    after = paper_account.positions(paper_journal.load(sim.journal)).set_index("symbol")
    assert after.shares[symbol] == 1
    assert after.average[symbol] == pytest.approx(before.average[symbol])
    gain = sold * (70 - before.average[symbol])
    assert after.realised[symbol] == pytest.approx(before.realised[symbol] + gain)
    sim.store.close()


def test_slippage_matches_the_status(sim: SimulatedDaemon, journal: Journal) -> None:
    known = status(sim.store, sim.config).slippage
    costs = paper_performance.slippage(journal)
    assert costs.realised == pytest.approx(known.realised_bps, rel=1e-9)
    assert (costs.modelled, costs.fills) == (7.0, known.fills)
    sessions = paper_performance.slippage_by_session(journal)
    assert sessions.cumulative_bp.iloc[-1] == pytest.approx(costs.realised)
    for group in ("symbol", "size"):
        table = paper_performance.slippage_by(journal, group)
        assert len(table) > 1
        assert table.cost.sum() == pytest.approx(sessions.cost.sum())
        assert ((table.low < table.bp) & (table.bp < table.high)).all()
        assert set(table.modelled) == {7.0}
    assert costs.fees == pytest.approx(7.0, rel=0.05)  # charged on fill prices, not on decision prices


def test_slippage_error_matches_a_bootstrap_of_sessions(journal: Journal) -> None:
    sessions = paper_performance.slippage_by_session(journal)
    draw = np.random.default_rng(0).integers(0, len(sessions), (20_000, len(sessions)))
    cost, value = sessions.cost.to_numpy()[draw].sum(1), sessions.value.to_numpy()[draw].sum(1)
    n = len(sessions)
    resampled = float(np.std(cost / value) * 10_000 * np.sqrt(n / (n - 1)))
    assert paper_performance.slippage(journal).error == pytest.approx(resampled, rel=0.1)


def test_open_intents_match_the_status(sim: SimulatedDaemon, journal: Journal) -> None:
    frame = paper_account.open_intents(journal)
    known = status(sim.store, sim.config).open_intents
    assert len(frame) == len(known) > 0
    for row, other in zip(frame.itertuples(), known, strict=True):
        assert (row.symbol, row.side, row.intended) == (other.symbol, other.side, float(other.quantity))
        assert row.filled == pytest.approx(float(other.filled))


def test_orders_and_fills_are_newest_first(sim: SimulatedDaemon, journal: Journal) -> None:
    orders, fills = paper_account.orders(journal), paper_account.fills(journal)
    assert len(orders) == sim.store.count(schema.orders)
    assert len(fills) == sim.store.count(schema.fills)
    assert orders["at"].is_monotonic_decreasing
    assert (orders.filled <= orders.quantity).all()


def test_daily_loss_and_drawdown_feed_the_limits(sim: SimulatedDaemon, journal: Journal) -> None:
    marks = [float(row.equity) for row in sim.store.rows(schema.equity)]
    daily_loss, drawdown = paper_state.daily_loss_and_drawdown(journal)
    assert daily_loss == pytest.approx(max(0.0, 1 - marks[-1] / marks[-2]))
    assert drawdown == pytest.approx(max(0.0, 1 - marks[-1] / max(*marks, 100_000.0)))
    limits = paper_state.risk_limits(journal).set_index("limit")
    assert limits.allowed["daily loss"] == 0.9
    assert limits.used["gross exposure"] == pytest.approx(paper_account.positions(journal).weight.sum())
    summary = paper_state.summary(journal)
    assert summary.day == pytest.approx(marks[-1] / marks[-2] - 1)
    assert summary.total == pytest.approx(marks[-1] / 100_000 - 1)


def test_limits_left_to_the_mandates_of_several_strategies_are_not_shown(journal: Journal) -> None:
    assert journal.config is not None
    config = dataclasses.replace(journal.config, risk=dataclasses.replace(journal.config.risk, max_position=0.0))
    limits = paper_state.risk_limits(dataclasses.replace(journal, config=config))
    assert list(limits["limit"]) == ["gross exposure", "net exposure", "daily loss", "drawdown"]


@pytest.mark.parametrize(
    ("age", "level", "label", "detail"),
    [
        (0.5, "good", "Daemon: running", "trading"),
        (20.0, "warning", "Daemon: late", "20 s ago"),
        (7200.0, "bad", "Daemon: not responding", "2 h"),
    ],
)
def test_daemon_status_by_age_of_the_heartbeat(
    journal: Journal, age: float, level: str, label: str, detail: str
) -> None:
    assert journal.config is not None
    beat = {"at": (NOW - timedelta(seconds=age)).isoformat(), "pid": os.getpid(), "trading": True}
    Path(journal.config.monitoring.heartbeat).write_text(json.dumps(beat))
    status = paper_state.daemon_status(journal, NOW)
    assert (status.level, status.label) == (level, label)
    assert detail in status.detail


def test_daemon_with_ended_process_is_stopped(journal: Journal) -> None:
    assert journal.config is not None
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    beat = {"at": (NOW - timedelta(seconds=4)).isoformat(), "pid": ended.pid, "trading": True}
    Path(journal.config.monitoring.heartbeat).write_text(json.dumps(beat))
    status = paper_state.daemon_status(journal, NOW)
    assert (status.level, status.label) == ("bad", "Daemon: stopped")
    assert "4 s ago" in status.detail


@pytest.mark.parametrize(
    ("content", "level"),
    [(None, "bad"), ("{}", "warning"), ("no json", "bad"), ('{"at": "yesterday", "trading": true}', "warning")],
)
def test_missing_heartbeat_is_bad_and_a_damaged_one_a_warning(
    journal: Journal, content: str | None, level: str
) -> None:
    assert journal.config is not None
    file = Path(journal.config.monitoring.heartbeat)
    file.unlink(missing_ok=True)
    if content is not None:
        file.write_text(content)
    assert paper_state.daemon_status(journal, NOW).level == level


@pytest.mark.parametrize(
    ("bar", "now", "behind"),
    [
        ("2024-01-12", datetime(2024, 1, 15, 12, tzinfo=UTC), 0),  # a Monday that is a holiday
        ("2024-01-12", datetime(2024, 1, 16, 20, tzinfo=UTC), 0),  # before the close
        ("2024-01-12", datetime(2024, 1, 16, 22, tzinfo=UTC), 1),
        ("2024-01-12", datetime(2024, 1, 18, 22, tzinfo=UTC), 3),
    ],
)
def test_sessions_behind(bar: str, now: datetime, behind: int) -> None:
    assert paper_state.sessions_behind(Calendar(), bar, now) == behind


def test_badge_of_prices_counts_the_sessions_of_the_broker(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, config(timing=TimingSettings(poll=1800.0)))
    closed = date(2024, 1, 10)
    sim.broker.overrides["calendar"] = lambda original, *days: tuple(s for s in original(*days) if s.date != closed)
    record_settings(sim.store, sim.config, sim.clock.now())
    sim.day(date(2024, 1, 9))
    sim.store.close()
    journal = paper_journal.load(sim.journal)
    evening = datetime(2024, 1, 10, 23, tzinfo=UTC)
    calendars = (journal.calendar, Calendar())
    assert [paper_state.sessions_behind(calendar, "2024-01-09", evening) for calendar in calendars] == [0, 1]
    crypto = config(broker=BrokerSettings(kind="alpaca-crypto"), symbols=("BTC/USD",))
    behind = paper_state.sessions_behind(calendar_of(crypto), "2024-01-12", datetime(2024, 1, 15, 12, tzinfo=UTC))
    assert behind == 2  # a weekend of a market that never closes


def test_command_is_pending_until_its_result(tmp_path: Path) -> None:
    store = Store.create_or_open(tmp_path / "journal.sqlite")
    enqueue(store, CommandName.HALT, NOW - timedelta(seconds=30), user="Ann", address="192.0.2.7")
    journal = paper_journal.load(store.path)
    assert "Pending for 30 s: halt" in paper_state.pending_commands(journal, NOW)
    row = paper_state.commands_table(journal).iloc[0]
    assert (row["name"], row.user, row.address, row.pending) == ("halt", "Ann", "192.0.2.7", True)
    record_result(store, pending_commands(store)[0], CommandResult("halted"), NOW)
    journal = paper_journal.load(store.path)
    assert paper_state.pending_commands(journal, NOW) == ""
    assert paper_state.commands_table(journal).iloc[0].outcome == "halted"
    store.close()


def test_mismatch_is_shown_until_acknowledged(tmp_path: Path) -> None:
    store = Store.create_or_open(tmp_path / "journal.sqlite")
    store.add(schema.alerts, NOW, level="critical", kind="mismatch", message="AAPL: 5 in the journal, 6 at the broker")
    status = paper_state.reconciliation_status(paper_journal.load(store.path))
    assert (status.level, status.label) == ("bad", "Not reconciled")
    assert "AAPL" in status.detail
    enqueue(store, CommandName.ACKNOWLEDGE, NOW)
    assert paper_state.reconciliation_status(paper_journal.load(store.path)).level == "bad"
    record_result(store, pending_commands(store)[0], CommandResult("accepted"), NOW + timedelta(seconds=1))
    assert paper_state.reconciliation_status(paper_journal.load(store.path)).level == "good"
    store.close()


def test_backtest_difference_is_the_difference_in_growth(sim: SimulatedDaemon) -> None:
    sessions = list(paper_journal.load(sim.journal).equity.session)
    replayed = [100_000.0 * 1.001**n for n in range(len(sessions) - 1)]  # the replay does not cover the last session
    file = sim.journal.with_name("journal.tracking.json")
    document = {"made": "2024-02-01T00:00:00+00:00", "strategy": "rotating", "sessions": sessions[:-1]}
    write_json(file, {**document, "backtest": replayed, "differences": []})
    journal = paper_journal.load(sim.journal)
    found = paper_performance.backtest_difference(journal)
    mine = journal.equity.equity.to_numpy()[:-1]
    expected = (mine[-1] / mine[0] - replayed[-1] / replayed[0]) * 10_000
    assert found.end == pytest.approx(expected)
    daily = np.diff(mine) / mine[:-1] - 0.001
    assert found.error == pytest.approx(np.std(daily, ddof=1) * np.sqrt(252) * 10_000)
    assert found.behind == 1
    write_json(file, {**document, "backtest": [1.0]})
    with pytest.raises(RunError, match="is damaged"):
        paper_performance.backtest_difference(journal)
    file.unlink()
    assert not paper_performance.backtest_difference(journal).is_available


def test_empty_journal(empty: Journal) -> None:
    assert paper_account.positions(empty).empty
    assert paper_account.orders(empty).empty
    assert paper_account.fills(empty).empty
    assert paper_account.open_intents(empty).empty
    assert paper_account.external_holdings(empty).empty
    assert paper_performance.slippage(empty).fills == 0
    assert paper_state.risk_limits(empty).empty
    assert paper_state.halted_symbols(empty).empty
    assert paper_state.daily_loss_and_drawdown(empty) == (0.0, 0.0)
    assert [badge.level for badge in paper_state.statuses(empty, NOW)] == ["good", "unknown", "unknown", "good"]
    assert not paper_performance.backtest_difference(empty).is_available
    assert empty.state == ("active", "")
    assert "account unknown" in paper_state.journal_caption(empty)


def test_journal_is_cached_until_a_write(sim: SimulatedDaemon) -> None:
    first = paper_journal.load(sim.journal)
    assert paper_journal.load(sim.journal) is first
    sim.store.add(schema.alerts, NOW, level="info", kind="test", message="new")
    assert paper_journal.load(sim.journal) is not first


def test_decision_details_are_text(tmp_path: Path) -> None:
    store = Store.create_or_open(tmp_path / "journal.sqlite")
    for day, detail in ((2, "{}"), (3, '{"AA": "no bar", "BB": "halted"}'), (4, "the broker did not answer"), (5, "3")):
        values = {"run": "r", "strategy": "s", "feed": "f", "inputs": "{}", "outcome": "orders", "detail": detail}
        store.add(schema.decisions, NOW, bar=f"2024-01-{day:02d}", **values)
    store.close()
    details = list(paper_state.decisions_table(paper_journal.load(store.path)).detail)
    assert details == ["3", "the broker did not answer", "AA: no bar; BB: halted", ""]


def test_settings_are_recorded_without_secrets(tmp_path: Path) -> None:
    settings = PaperConfig(
        name="kept", strategy="buy_and_hold", symbols=("A", "B"), journal=str(tmp_path / "j"),
        monitoring=MonitoringSettings(webhook="https://example.org/secret-token"),
    )  # fmt: skip
    store = Store.create_or_open(tmp_path / "j")
    for _ in range(3):
        record_settings(store, settings, NOW)
    assert store.count(schema.settings) == 1
    found = paper_journal.load(store.path).config
    assert found is not None
    assert (found.name, found.symbols, found.monitoring.webhook) == ("kept", ("A", "B"), "")
    store.close()
    assert b"secret-token" not in (tmp_path / "j").read_bytes()


def test_benchmark_is_equal_weights_of_the_symbols(sim: SimulatedDaemon, journal: Journal) -> None:
    days = sim.panel.times.astype("datetime64[D]").astype(str).tolist()
    rows = [days.index(session) for session in journal.equity.session]
    columns = [sim.panel.symbols.index(symbol) for symbol in sim.config.symbols]
    close = sim.panel.close[rows][:, columns]
    growth = np.cumprod([1.0, *(close[1:] / close[:-1]).mean(1)])
    expected = journal.equity.equity.iloc[0] * growth
    np.testing.assert_allclose(paper_performance.benchmark_equity(journal), expected, rtol=1e-6)


def test_split_is_no_return_of_the_benchmark(tmp_path: Path) -> None:
    store = Store.create_or_open(tmp_path / "journal.sqlite")
    for session, symbol, price in (
        ("2024-01-02", "A", "100"), ("2024-01-02", "B", "50"), ("2024-01-02", "A", "50"),  # A: two for one
        ("2024-01-03", "A", "55"), ("2024-01-03", "B", "50"),
    ):  # fmt: skip
        store.add(schema.closes, NOW, symbol=symbol, session=session, price=price)
    for session in ("2024-01-02", "2024-01-03"):
        store.add(schema.equity, NOW, session=session, equity="1000", cash="1000", broker_equity="1000")
    store.close()
    found = paper_performance.benchmark_equity(paper_journal.load(tmp_path / "journal.sqlite"))
    assert found == pytest.approx([1000.0, 1050.0])


def test_totals_of_the_positions(journal: Journal) -> None:
    held = paper_account.positions(journal)
    text = paper_account.totals(journal)
    assert f"{(held.shares != 0).sum()} positions: ${held.value.sum():,.0f}" in text
    assert f"Cash: ${journal.cash:,.0f}." in text


def test_summaries_by_session(journal: Journal, empty: Journal) -> None:
    days = paper_account.day_summaries(journal)
    assert list(days) == sorted(days, reverse=True)
    assert all(f"{day}: equity" in text for day, text in days.items())
    assert paper_account.day_summaries(empty) == {}


def test_causes_and_strategies_of_a_replay_are_read(sim: SimulatedDaemon) -> None:
    read = paper_journal.load(sim.journal)
    sessions = read.equity.session.tolist()
    document = {
        "sessions": sessions,
        "backtest": read.equity.equity.tolist(),
        "made": "2024-02-01T00:00:00+00:00",
        "attribution": {"dividends": -96.0, "rounding": 4.0},
        "strategies": {"one": {"strategy": "momentum", "equity": 10.0, "backtest": 12.0}},
    }
    write_json(paper_performance.difference_file(read.path), document)
    found = paper_performance.backtest_difference(read)
    assert found.causes == {"dividends": -96.0, "rounding": 4.0}
    assert found.parts.to_dict("records") == [
        {"name": "one", "strategy": "momentum", "equity": 10.0, "backtest": 12.0, "difference": -2.0}
    ]
    paper_performance.difference_file(read.path).unlink()


class Fixed:
    """Decides the same weights of the three symbols each day, None on the days in `holds`."""

    name, feature_names, lookback = "fixed", (), 2

    def __init__(self, weights: tuple[float, float, float], holds: int = 0) -> None:
        self.weights, self.decisions, self.holds = np.array(weights), 0, holds

    def target_weights(self, window: Any, positions: Any) -> Any:
        self.decisions += 1
        return None if self.decisions > 3 and self.holds else self.weights


@pytest.mark.slow
@pytest.mark.parametrize("holds", [0, 1], ids=["decides daily", "holds"])
def test_targets_are_those_of_all_strategies(tmp_path: Path, holds: int) -> None:
    """Of the account's equity, whoever decided last; the third strategy is no longer in the config."""
    parts = tuple(StrategyConfig(name, "x", share=share) for name, share in (("one", 0.5), ("two", 0.3), ("old", 0.2)))
    settings = config(strategy="", strategies=parts)
    strategies = [Fixed((0.6, 0.2, 0.0)), Fixed((0.0, 0.1, 0.8), holds), Fixed((0.9, 0.0, 0.0))]
    sim = SimulatedDaemon(tmp_path, settings, strategies=strategies)
    sim.day(date(2024, 1, 12))
    sim.config = dataclasses.replace(settings, strategies=parts[:2])
    sim.sources = sim.sources[:2]
    sim.restart()
    record_settings(sim.store, sim.config, sim.clock.now())
    sim.day(date(2024, 1, 19))
    frame = paper_account.positions(paper_journal.load(sim.journal)).set_index("symbol")
    trader = sim.daemon.trader
    one, two = (float(each.equity() / trader.equity()) for each in trader.traders)
    assert one + two < 0.9
    expected = {"AA": 0.6 * one, "BB": 0.2 * one + 0.1 * two, "CC": 0.8 * two}
    assert frame.target.to_dict() == pytest.approx(expected, rel=0.03)  # fills since the last close
    assert frame.distance.to_dict() == pytest.approx((frame.weight - frame.target).to_dict())
    sim.store.close()
