"""Several strategies in one account: each has its own book, limits and decisions; together they are the account."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finrl_pod.errors import ConfigError
from finrl_pod.paper.domain.records import ActionKind, CorporateAction, Reason, Rejected
from finrl_pod.paper.execution.reconcile import book_action
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import CommandName, enqueue
from finrl_pod.paper.journal.ledger import Ledger
from finrl_pod.paper.monitoring.status import HeartbeatStatus, Metrics, status, status_text
from finrl_pod.paper.runtime.replay import replay
from finrl_pod.paper.settings import PaperConfig, StrategyConfig, allocations, pack, parse, unpack
from tests.paper.factories import FixedSource, FunctionStrategy, RotatingStrategy, SimulatedDaemon, config, prices

FIRST, LAST = date(2024, 1, 8), date(2024, 2, 2)
PARTS = (StrategyConfig("slow", "synthetic", share=0.6), StrategyConfig("other", "synthetic", share=0.3))
SEVERAL = config(strategy="", strategies=PARTS)


class HoldingStrategy:
    """Buys AA and BB once."""

    name = "holding"
    feature_names: tuple[str, ...] = ()
    lookback = 2

    def target_weights(self, window: Any, positions: Any) -> Any:
        return None if np.any(positions.weights) else np.array([0.5, 0.4, 0.0])


def start(folder: Path, settings: PaperConfig = SEVERAL, second: Any = None) -> SimulatedDaemon:
    return SimulatedDaemon(folder, settings, strategies=[HoldingStrategy(), second or RotatingStrategy()])


@pytest.mark.slow
def test_each_strategy_trades_as_it_does_alone(tmp_path: Path) -> None:
    panel = prices()
    sources = [FixedSource(HoldingStrategy()), FixedSource(RotatingStrategy())]
    together = replay(SEVERAL, panel, sources, FIRST, LAST, tmp_path / "both.sqlite")
    assert set(together.strategies) == {"slow", "other"}
    for (name, marks), part, source in zip(together.strategies.items(), allocations(SEVERAL), sources, strict=True):
        alone = replay(part, panel, [source], FIRST, LAST, tmp_path / f"{name}.sqlite")
        if name == "slow":
            assert marks == alone.equity
        else:  # its orders wait where `slow` has an opposite one
            assert float(marks[-1][1]) == pytest.approx(float(alone.equity[-1][1]), rel=0.01)
    idle = Decimal(10_000)
    for at, (session, equity) in enumerate(together.equity):
        assert {marks[at][0] for marks in together.strategies.values()} == {session}
        assert equity == idle + sum(marks[at][1] for marks in together.strategies.values())


@pytest.mark.slow
def test_books_add_up_and_outlive_a_restart(tmp_path: Path) -> None:
    sim = start(tmp_path)
    sim.day(date(2024, 1, 12))
    ledger = sim.daemon._c.ledger
    books = dict(ledger.books)
    assert {run for run, book in books.items() if book.positions} == {"test/slow", "test/other"}
    for symbol in ("AA", "BB", "CC"):
        assert sum(book.positions[symbol] for book in books.values()) == ledger.positions[symbol]
    assert sum((book.cash for book in books.values()), Decimal(0)) == ledger.cash
    again = Ledger(sim.store)
    for run in ("test/slow", "test/other"):
        assert {s: q for s, q in again.books[run].positions.items() if q} == {
            s: q for s, q in books[run].positions.items() if q
        }
        assert again.books[run].cash == books[run].cash
    sim.restart()
    sim.day(date(2024, 1, 17))
    sim.assert_journal_matches_broker()
    decisions = [(row.run, row.bar) for row in sim.store.rows(schema.decisions)]
    assert len(decisions) == len(set(decisions))
    assert {run for run, _ in decisions} == {"test/slow", "test/other"}
    shown = status(sim.store, SEVERAL)
    assert set(shown.strategies) == {"slow", "other"}
    assert shown.strategies["other"].capital == 30_000


@pytest.mark.slow
def test_a_strategy_that_fails_leaves_the_other_trading(tmp_path: Path) -> None:
    sim = start(tmp_path, second=FunctionStrategy(lambda _: 1 / 0, name="broken"))
    sim.day(date(2024, 1, 10))
    outcomes = {(row.run, row.outcome) for row in sim.store.rows(schema.decisions)}
    assert ("test/other", "failed") in outcomes
    assert ("test/slow", "orders") in outcomes
    assert any(message.startswith("other: decision on") for _, kind, message in sim.alerts if kind == "failed")
    assert sim.daemon.trader.positions["AA"] > 0


@pytest.mark.slow
def test_limits_are_of_each_strategy(tmp_path: Path) -> None:
    limited = replace(SEVERAL, strategies=(replace(PARTS[0], max_position=0.25), PARTS[1]))
    sim = start(tmp_path, limited)
    sim.day(date(2024, 1, 9))
    closes = sim.daemon._c.ledger.closes.prices
    slow = sim.daemon.trader.traders[0]
    for symbol in ("AA", "BB"):
        share = slow.positions[symbol] * closes[symbol] / slow.equity()
        assert share == pytest.approx(Decimal("0.25"), abs=Decimal("0.01"))
    assert any(message.startswith("slow: target weights are cut") for _, _, message in sim.alerts)


@pytest.mark.slow
def test_opposite_orders_of_two_strategies_never_live_together(tmp_path: Path) -> None:
    """Brokers refuse them as wash trades. The later one waits, and its target is kept."""
    days = {"2024-01-08": ([0.9, 0.0, 0.0], [0.0, 0.9, 0.0]), "2024-01-10": ([0.0, 0.9, 0.0], [0.9, 0.0, 0.0])}

    def strategy(place: int) -> FunctionStrategy:
        def decide(window: Any) -> Any:
            found = days.get(str(window.times[-1].astype("datetime64[D]")))
            return None if found is None else np.array(found[place])

        return FunctionStrategy(decide)

    sim = SimulatedDaemon(tmp_path, SEVERAL, strategies=[strategy(0), strategy(1)])
    live: list[set[tuple[str, str]]] = []

    def submit(original: Any, request: Any) -> Any:
        outcome = original(request)
        live.append({(o.symbol, o.side.value) for o in sim.account.orders("open")})
        return outcome

    sim.broker.overrides["submit"] = submit
    sim.day(date(2024, 1, 19))
    assert not any({(s, "buy"), (s, "sell")} <= sides for sides in live for s in ("AA", "BB"))
    slow, other = (trader.positions for trader in sim.daemon.trader.traders)
    assert slow["BB"] > 0
    assert other["AA"] > 0
    assert slow["AA"] == other["BB"] == 0
    sim.assert_journal_matches_broker()


@pytest.mark.slow
def test_flatten_sells_the_shares_of_every_strategy(tmp_path: Path) -> None:
    sim = start(tmp_path)
    sim.day(date(2024, 1, 9))
    enqueue(sim.store, CommandName.FLATTEN, sim.clock.now())
    sim.day(date(2024, 1, 12))
    assert not any(sim.daemon.trader.positions.values())
    assert not any(shares for book in sim.daemon._c.ledger.books.values() for shares in book.positions.values())


@pytest.mark.slow
def test_shares_of_a_removed_strategy_are_reported_and_can_be_sold(tmp_path: Path) -> None:
    sim = start(tmp_path)
    sim.day(date(2024, 1, 9))
    sim.config = replace(SEVERAL, strategies=PARTS[1:])
    sim.sources = sim.sources[1:]
    sim.restart()
    sim.day(date(2024, 1, 10))
    assert any("own shares of test/slow are held" in message for _, _, message in sim.alerts)
    enqueue(sim.store, CommandName.FLATTEN, sim.clock.now())
    sim.day(date(2024, 1, 12))
    assert not any(sim.daemon.trader.positions.values())


@pytest.mark.slow
def test_corporate_actions_are_split_over_the_books(tmp_path: Path) -> None:
    sim = start(tmp_path)
    sim.day(date(2024, 1, 12))
    ledger, at = sim.daemon._c.ledger, datetime(2024, 1, 13, tzinfo=UTC)
    before = {run: book.positions["AA"] for run, book in ledger.books.items()}
    cash = {run: book.cash for run, book in ledger.books.items()}
    split = CorporateAction("s", ActionKind.SPLIT, "AA", date(2024, 1, 13), new=Decimal(3))
    book_action(ledger, split, at, pays_dividends=True)
    assert {run: book.positions["AA"] for run, book in ledger.books.items()} == {r: 3 * q for r, q in before.items()}
    dividend = CorporateAction("d", ActionKind.CASH_DIVIDEND, "AA", date(2024, 1, 13), cash=Decimal("0.25"))
    book_action(ledger, dividend, at, pays_dividends=True)
    for run, book in ledger.books.items():
        assert book.cash - cash[run] == pytest.approx(Decimal("0.25") * 3 * before[run], abs=Decimal("1e-8"))
    assert sum((b.cash for b in ledger.books.values()), Decimal(0)) == ledger.cash
    assert {r: b.positions["AA"] for r, b in Ledger(sim.store).books.items()} == {r: 3 * q for r, q in before.items()}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([{"name": "a", "strategy": "index"}], r"strategies.0.share is out of its range"),
        ([{"name": "a", "strategy": "index", "share": 0.6}] * 2, "needs a unique name"),
        ([{"name": n, "strategy": "index", "share": 0.6} for n in "ab"], "add up to at most 1, got 1.2"),
        ([{"name": "a", "share": 0.6}], "strategies.0: set exactly one of strategy, run and champion"),
        ([{"name": "a/b", "strategy": "index", "share": 0.6}], "strategies.0.name is out of its range"),
        ([{"nam": "a", "strategy": "index", "share": 0.6}], "unknown key strategies.0.nam; did you mean name"),
    ],
)
def test_invalid_shares_are_refused(parts: list[dict[str, Any]], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse({"strategies": parts, "symbols": ["A"]})


def test_several_strategies_are_recorded_with_the_settings() -> None:

    assert unpack(pack(SEVERAL)).strategies == PARTS
    assert [part.name for part in allocations(SEVERAL)] == ["test/slow", "test/other"]
    assert [part.capital for part in allocations(SEVERAL)] == [60_000.0, 30_000.0]


@pytest.mark.slow
def test_status_shows_the_parts_and_their_distances(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from finrl_pod_app.paper.status_view import show_status

    sim = start(tmp_path, replace(SEVERAL, orders=replace(SEVERAL.orders, collar=0.0005)))
    sim.day(date(2024, 1, 9))
    document = status(sim.store, sim.config)
    assert set(document.targets) == {"test/slow", "test/other"}
    show_status(document)
    shown = capsys.readouterr().out
    assert "slow" in shown
    assert "60%" in shown
    assert any(target.state == "open" for target in document.targets.values())
    assert "distance to target" in shown
    for age, running in ((2.0, True), (675.0, False)):
        beat = HeartbeatStatus(True, age, "2024-01-09T21:00:00+00:00", 1, running, running)
        show_status(replace(document, daemon=beat))
        shown = capsys.readouterr().out
        assert f"last heartbeat {age:.0f} s ago" in shown
        assert ("not running" not in shown, "active, as of" not in shown) == (running, running)


@pytest.mark.slow
def test_distance_to_target_is_that_of_the_account(tmp_path: Path) -> None:
    sim = start(tmp_path)

    def refuse(original: Any, request: Any) -> Any:
        return Rejected(Reason.OTHER, "no") if request.symbol == "BB" else original(request)

    sim.broker.overrides["submit"] = refuse
    sim.day(date(2024, 1, 9))
    parts, equity = status(sim.store, sim.config).strategies, float(sim.daemon.trader.equity())
    targets = {run.partition("/")[2]: t.distance for run, t in status(sim.store, sim.config).targets.items()}
    expected = sum(distance * float(parts[name].equity) / equity for name, distance in targets.items())
    assert expected > 0.05
    assert Metrics(sim.store, sim.config)()["distance_to_target"] == pytest.approx(expected)
    assert f"distance to target: {expected:.2%} of equity" in status_text(sim.store, sim.config)


@pytest.mark.slow
def test_metrics_read_only_new_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = start(tmp_path)
    sim.day(date(2024, 1, 9))
    metrics = Metrics(sim.store, sim.config)
    before = metrics()
    assert before["fills"] == sim.store.count(schema.fills) > 0
    sim.store.add(schema.alerts, sim.clock.now(), level="critical", kind="test", message="one")
    sim.day(date(2024, 1, 11))
    after = metrics()
    assert after == Metrics(sim.store, sim.config)()
    assert (after["fills"], after["alerts"]) == (sim.store.count(schema.fills), sim.store.count(schema.alerts))
    assert after["critical_alerts"] == before["critical_alerts"] + 1
    rows: list[int] = []
    for name in ("rows", "query"):
        original = getattr(sim.store, name)
        monkeypatch.setattr(sim.store, name, lambda *query, f=original: rows.append(len(found := f(*query))) or found)
    monkeypatch.setattr(Ledger, "__init__", lambda *_: pytest.fail("the whole journal is read again"))
    assert metrics() == after
    assert sum(rows) == 0
