"""Faulty streams, reads, prices and strategies: the daemon loop on a simulated market."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from finrl_pod.data.panel import make_panel
from finrl_pod.errors import AuthenticationError, BrokerUnavailable
from finrl_pod.paper.domain.port import COLUMNS
from finrl_pod.paper.domain.records import (
    ActionKind,
    Asset,
    CorporateAction,
)
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import RiskState
from finrl_pod.paper.settings import DataSettings, OrderSettings, RiskSettings, ScheduleSettings, TimingSettings
from finrl_pod.types import Panel
from tests.paper.factories import (
    FunctionStrategy,
    PartialFillBroker,
    SimulatedDaemon,
    SwappingStrategy,
    config,
    for_first_calls,
    own_orders,
    prices,
)

pytestmark = pytest.mark.slow

DAY = date(2024, 1, 9)  # the first orders fill here


def test_duplicate_and_reversed_updates_are_booked_once(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, config(orders=OrderSettings(fractional=True, collar=0.2)), kind=PartialFillBroker)
    updates: list[Any] = []

    def duplicate_and_reverse(original: Any) -> Any:
        updates.extend(original())
        return tuple(reversed(updates)) + tuple(updates)

    sim.broker.overrides["updates"] = duplicate_and_reverse
    sim.run_to(datetime(2024, 1, 9, 15, tzinfo=UTC))
    assert sim.store.count(schema.fills) == 2
    sim.assert_journal_matches_broker()


def test_silent_stream_only_delays_fills(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.broker.overrides["updates"] = lambda original: ()
    sim.day(date(2024, 1, 11))
    assert sim.store.count(schema.fills) > 4
    sim.assert_journal_matches_broker()


@pytest.mark.parametrize("call", ["positions", "account", "orders", "fills_since"])
def test_failed_read_is_not_treated_as_empty(tmp_path: Path, call: str) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(DAY)
    sent = sim.broker.called("submit")

    def fail(original: Any, *arguments: Any, **named: Any) -> Any:
        raise BrokerUnavailable("no response")

    sim.broker.overrides[call] = fail
    sim.day(date(2024, 1, 10))
    assert sim.broker.called("submit") == sent
    assert "unavailable" in sim.alert_kinds()
    sim.broker.overrides.clear()
    sim.day(date(2024, 1, 11))
    assert sim.broker.called("submit") > sent
    sim.assert_journal_matches_broker()


def unreachable(original: Any, *arguments: Any, **named: Any) -> Any:
    raise BrokerUnavailable(f"no response ({next(COUNTER)})")


COUNTER = itertools.count()


def outage_alerts(sim: SimulatedDaemon) -> list[str]:
    return [kind for _, kind, _ in sim.alerts if kind in ("unavailable", "available")]


@pytest.mark.parametrize(("failures", "expected"), [(1, []), (10, ["unavailable", "available"])])
def test_outage_is_alerted_once_and_at_its_end(tmp_path: Path, failures: int, expected: list[str]) -> None:
    """Whatever its causes; a single failure is not alerted."""
    sim = SimulatedDaemon(tmp_path)
    sim.day(DAY)
    sim.broker.overrides["account"] = for_first_calls(failures, unreachable)
    sim.day(date(2024, 1, 10))
    assert outage_alerts(sim) == expected
    sim.assert_journal_matches_broker()


def refused(original: Any, *arguments: Any) -> Any:
    raise AuthenticationError("the keys were refused (401)")


@pytest.mark.parametrize("call", ["account", "submit", "clock", "fills_since"])
def test_keys_that_are_refused_once_are_tried_again(tmp_path: Path, call: str) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.broker.overrides[call] = for_first_calls(1, refused)
    sim.day(DAY)
    assert len(own_orders(sim)) == 2
    assert "keys" not in sim.alert_kinds()
    sim.assert_journal_matches_broker()


@pytest.mark.parametrize("poll", [1.0, 3600.0])
def test_keys_that_stay_refused_end_the_daemon_after_five_minutes(tmp_path: Path, poll: float) -> None:
    sim = SimulatedDaemon(tmp_path, config(timing=TimingSettings(poll=poll)))
    sim.day(DAY)
    sent, calls = sim.broker.called("submit"), len(sim.broker.calls)
    sim.broker.overrides |= dict.fromkeys(("account", "clock", "orders", "fills_since", "calendar", "bars"), refused)
    with pytest.raises(AuthenticationError):
        sim.day(date(2024, 1, 10))
    attempts = [name for name, _ in sim.broker.calls[calls:] if name in ("clock", "account")]
    assert len(attempts) >= 4
    assert sim.broker.called("submit") == sent
    assert "keys" in sim.alert_kinds()
    row = sim.store.last(schema.alerts, schema.alerts.c.kind == "unavailable")
    elapsed = sim.clock.now() - datetime.fromisoformat(row.at)
    assert timedelta(seconds=180) <= elapsed <= timedelta(seconds=245)


def test_blocked_account_trades_nothing_until_it_is_unblocked(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.broker.overrides["account"] = lambda original: replace(original(), block="trading_blocked")
    sim.day(DAY)
    assert not own_orders(sim)
    assert [(level, "trading_blocked" in text) for level, kind, text in sim.alerts if kind == "blocked"] == [
        ("critical", True)
    ]
    sim.broker.overrides.clear()
    sim.day(date(2024, 1, 10))
    assert own_orders(sim)
    assert "unblocked" in sim.alert_kinds()


def test_unscheduled_closure_of_the_brokers_calendar_costs_its_session_only(tmp_path: Path) -> None:
    closed = date(2024, 1, 10)
    sim = SimulatedDaemon(tmp_path)
    sim.broker.overrides["calendar"] = lambda original, *range_: tuple(s for s in original(*range_) if s.date != closed)

    def without_bar(original: Any, *arguments: Any) -> Any:
        table = original(*arguments)
        kept_rows = np.flatnonzero(table.times != np.datetime64(closed))
        return replace(table, times=table.times[kept_rows], **{c: getattr(table, c)[kept_rows] for c in COLUMNS})

    sim.broker.overrides["bars"] = without_bar
    sim.day(DAY)
    sent = sim.broker.called("submit")
    sim.day(closed)
    assert sim.broker.called("submit") == sent
    sim.day(date(2024, 1, 12))
    decisions = [(row.bar, row.outcome) for row in sim.store.rows(schema.decisions)]
    assert decisions == [("2024-01-08", "orders"), ("2024-01-09", "orders"), ("2024-01-11", "orders")]
    assert not sim.alerts


def test_calendar_without_a_later_session_is_unavailable(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.broker.overrides["calendar"] = lambda original, *_: ()
    sim.day(DAY)
    assert outage_alerts(sim) == ["unavailable"]
    assert not own_orders(sim)


def test_retry_does_not_repeat_journal_rows(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, strategy=ThreeSymbolStrategy())
    sim.broker.overrides |= {"assets": for_first_calls(3, unreachable), "bars": with_price_jump(0.5)}
    sim.day(date(2024, 1, 9))
    sim.broker.overrides["assets"] = for_first_calls(3, unreachable)
    sim.day(date(2024, 1, 10))
    sessions = [row.session for row in sim.store.rows(schema.equity)]
    assert sessions == ["2024-01-08", "2024-01-09"]
    assert sim.store.count(schema.symbol_halts) == 1
    assert len([1 for _, kind, _ in sim.alerts if kind == "symbol_halted"]) == 1
    assert [row.outcome for row in sim.store.rows(schema.decisions)] == ["orders", "orders"]


def test_faulty_bar_is_alerted_once_per_decision(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, strategy=FunctionStrategy(lambda window: np.array([0.3, 0.3, 0.3])))
    sim.broker.overrides |= {"assets": for_first_calls(3, unreachable), "bars": with_bad_value("close", np.nan)}
    sim.day(DAY)
    assert len([1 for _, kind, _ in sim.alerts if kind == "prices"]) == 1


def test_loss_limit_applies_if_equity_was_already_recorded(tmp_path: Path) -> None:
    """A daemon killed between recording equity and the risk state detects the loss after its restart."""
    limits = RiskSettings(max_position=1.0, max_order=1.0, max_turnover=4.0, daily_loss=0.1, drawdown=0.9)
    sim = SimulatedDaemon(tmp_path, config(risk=limits))
    sim.day(date(2024, 1, 11))
    cycle = sim.daemon._calendar.cycles(sim.clock.now(), sim.config.schedule)[0]
    trader, bar = sim.daemon.trader, cycle.bar.isoformat()
    closes = sim.daemon._c.ledger.closes
    closes.record(bar, {symbol: price / 2 for symbol, price in closes.prices.items()}, sim.clock.now())
    sim.store.add(schema.equity, sim.clock.now(), session=bar, equity=str(trader.equity()), cash="0", broker_equity="0")
    trader._record_equity(bar)
    assert sim.daemon._c.risk.state is RiskState.REDUCING
    assert sim.store.count(schema.equity, schema.equity.c.session == bar) == 1


def with_bad_value(field: str, value: float, symbol: int = 0, rows: slice = slice(-1, None)) -> Any:
    def bars(original: Any, *arguments: Any) -> Any:
        table = original(*arguments)
        getattr(table, field)[rows, symbol] = value
        return table

    return bars


@pytest.mark.parametrize("value", [np.nan, 0.0, -5.0])
def test_faulty_bar_excludes_only_its_symbol(tmp_path: Path, value: float) -> None:
    sim = SimulatedDaemon(tmp_path, strategy=FunctionStrategy(lambda window: np.array([0.3, 0.3, 0.3])))
    sim.broker.overrides["bars"] = with_bad_value("close", value)
    sim.day(DAY)
    assert {o.symbol for o in own_orders(sim)} == {"BB", "CC"}
    assert "prices" in sim.alert_kinds()
    sim.assert_journal_matches_broker()


def test_stale_prices_prevent_all_orders(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.broker.overrides["bars"] = lambda original, symbols, start, end, how: original(
        symbols, start, end - timedelta(days=1), how
    )
    sim.day(DAY)
    assert not own_orders(sim)
    assert any("stale" in message for _, _, message in sim.alerts)
    assert [r.outcome for r in sim.store.rows(schema.decisions)] == ["missed"]


def with_price_jump(factor: float) -> Any:
    """Scale AA's prices by `factor` from the decision bar of 2024-01-09 on."""

    def bars(original: Any, *arguments: Any) -> Any:
        table = original(*arguments)
        late = table.times >= np.datetime64("2024-01-09")
        for column in (table.open, table.high, table.low, table.close):
            column[late, 0] *= factor
        return table

    return bars


def test_halted_symbol_is_sold_and_not_bought(tmp_path: Path) -> None:
    for weight, side in ((0.6, None), (0.0, "sell")):
        folder = tmp_path / str(weight)
        folder.mkdir()
        days = iter([0.2, 0.2, weight, weight])
        sim = SimulatedDaemon(
            folder, strategy=FunctionStrategy(lambda window, days=days: np.array([next(days), 0.2, 0.2]))
        )
        sim.broker.overrides["bars"] = with_price_jump(0.5)
        sim.day(date(2024, 1, 10))
        assert "symbol_halted" in sim.alert_kinds()
        sim.day(date(2024, 1, 11))
        later = {i.side for i in sim.intents() if i.symbol == "AA" and i.bar == "2024-01-10"}
        assert later == ({side} if side else set())
        if side is None:
            assert any("not bought while halted" in text for _, _, text in sim.alerts)
        else:
            assert not sim.daemon.trader.positions.get("AA")


def test_large_move_is_traded_and_unexplained_jump_halts_its_symbol(tmp_path: Path) -> None:
    for factor, halted in ((0.65, False), (0.5, True)):
        folder = tmp_path / str(factor)
        folder.mkdir()
        sim = SimulatedDaemon(folder, config(data=DataSettings(window=0)), ThreeSymbolStrategy())
        sim.broker.overrides["bars"] = with_price_jump(factor)
        sim.day(date(2024, 1, 10))
        assert ("symbol_halted" in sim.alert_kinds()) is halted
        later = {i.symbol for i in sim.intents() if i.bar == "2024-01-09"}
        assert ("AA" in later) is not halted


class ThreeSymbolStrategy(SwappingStrategy):
    """Returns weights (0.5, 0.2, 0.2) without positions and (0.2, 0.4, 0.3) otherwise."""

    def target_weights(self, window: Any, positions: Any) -> Any:
        return np.array([0.2, 0.4, 0.3]) if np.any(positions.weights) else np.array([0.5, 0.2, 0.2])


EX_DATE = date(2024, 1, 10)


def unadjusted_prices(panel: Panel, ratio: Decimal) -> Panel:
    """Prices without adjustment where each share of AA becomes `ratio` shares before the EX_DATE session."""
    late = panel.times >= np.datetime64(EX_DATE)
    factor = np.ones((len(panel.times), 3))
    factor[late, 0] = 1 / float(ratio)
    columns = {name: getattr(panel, name) * factor for name in ("open", "high", "low", "close")}
    return make_panel(
        panel.times, list(panel.symbols), {**columns, "volume": panel.volume}, name="synthetic", source="synthetic"
    )


def with_adjustment(ratio: Decimal) -> Any:
    """Adjust bars before the action if the request asks for adjusted prices."""

    def bars(original: Any, *arguments: Any) -> Any:
        table = original(*arguments)
        if arguments[-1] == "all":
            early = table.times < np.datetime64(EX_DATE)
            for column in (table.open, table.high, table.low, table.close):
                column[early, 0] /= float(ratio)
        return table

    return bars


def recorded_equity(sim: SimulatedDaemon) -> dict[str, Decimal]:
    return {row.session: Decimal(row.equity) for row in sim.store.rows(schema.equity)}


@pytest.mark.parametrize(
    ("kind", "new", "old"),
    [(ActionKind.SPLIT, "2", "1"), (ActionKind.SPLIT, "1", "4"), (ActionKind.STOCK_DIVIDEND, "1.05", "1")],
    ids=["split", "reverse split", "stock dividend"],
)
def test_split_is_booked_once_and_changes_neither_equity_nor_orders(
    tmp_path: Path, kind: ActionKind, new: str, old: str
) -> None:
    action = CorporateAction("s1", kind, "AA", EX_DATE, new=Decimal(new), old=Decimal(old))
    settings = config(risk=replace(config().risk, daily_loss=0.1, drawdown=0.1))
    for name in ("plain", "changed"):
        (tmp_path / name).mkdir()
    plain = SimulatedDaemon(tmp_path / "plain", settings, ThreeSymbolStrategy())
    sim = SimulatedDaemon(
        tmp_path / "changed", settings, ThreeSymbolStrategy(), unadjusted_prices(prices(), action.ratio)
    )
    sim.broker.overrides["bars"] = with_adjustment(action.ratio)
    for each in (plain, sim):
        each.day(DAY)
    before = sim.daemon.trader.positions["AA"]
    assert before > 0
    sim.account._shares["AA"] *= action.ratio
    sim.broker.overrides["corporate_actions"] = lambda original, *arguments: (action,)
    for each in (plain, sim):
        each.run_to(datetime(2024, 1, 10, 14, 10, tzinfo=UTC))
    assert sim.daemon.trader.positions["AA"] == before * action.ratio
    sim.restart()
    sim.run_to(datetime(2024, 1, 10, 14, 20, tzinfo=UTC))
    assert sim.daemon.trader.positions["AA"] == before * action.ratio
    assert sim.store.count(schema.corporate_actions) == 1
    assert not sim.daemon._c.reconciler.differences

    expected, sent = ({i.symbol: i for i in w.intents() if i.bar == "2024-01-09"} for w in (plain, sim))
    assert {s: i.side for s, i in sent.items()} == {s: i.side for s, i in expected.items()}
    assert set(sent) == {"AA", "BB", "CC"}
    for symbol, intent in sent.items():
        price, plain_price = Decimal(intent.reference_price), Decimal(expected[symbol].reference_price)
        assert price == pytest.approx(plain_price / action.ratio if symbol == "AA" else plain_price)
        value, plain_value = Decimal(intent.quantity) * price, Decimal(expected[symbol].quantity) * plain_price
        assert abs(value - plain_value) <= price + plain_price  # one share of rounding on each side

    for each in (plain, sim):
        each.run_to(datetime(2024, 1, 11, 14, 10, tzinfo=UTC))
    assert recorded_equity(sim)["2024-01-09"] == pytest.approx(recorded_equity(plain)["2024-01-09"])
    assert recorded_equity(sim)["2024-01-10"] == pytest.approx(
        recorded_equity(plain)["2024-01-10"], rel=Decimal("0.001")
    )
    assert sim.daemon._c.risk.state is RiskState.ACTIVE
    assert "symbol_halted" not in sim.alert_kinds()
    sim.assert_journal_matches_broker()


def exit_weights(window: Any) -> Any:
    """Sell AA at the decision of 2024-01-09."""
    return np.array([0.3995 if window.times[-1] < np.datetime64("2024-01-09") else 0.0, 0.2, 0.2])


def daemon_with_fractional_share(folder: Path, mode: Literal["open", "close"] = "open") -> SimulatedDaemon:
    """Run to the eve of EX_DATE, when AA is sold: a 3-for-2 split of an odd number of shares leaves half a share."""
    split = CorporateAction("s1", ActionKind.SPLIT, "AA", EX_DATE, new=Decimal(3), old=Decimal(2))
    settings = config(schedule=ScheduleSettings(mode))
    sim = SimulatedDaemon(folder, settings, FunctionStrategy(exit_weights), unadjusted_prices(prices(), split.ratio))
    sim.broker.overrides["bars"] = with_adjustment(split.ratio)
    sim.day(DAY)
    assert sim.daemon.trader.positions["AA"] % 2 == 1
    sim.account._shares["AA"] *= split.ratio
    sim.broker.overrides["corporate_actions"] = lambda original, *arguments: (split,)
    return sim


@pytest.mark.parametrize(("mode", "auction"), [("open", "opg"), ("close", "cls")])
def test_fractional_share_after_a_split_is_sold_after_the_whole_shares(
    tmp_path: Path, mode: Literal["open", "close"], auction: str
) -> None:
    sim = daemon_with_fractional_share(tmp_path, mode)
    whole = sim.account._shares["AA"] - Decimal("0.5")
    sim.day(date(2024, 1, 11))
    sales = [i for i in sim.intents() if i.symbol == "AA" and i.side == "sell"]
    assert [(i.bar, Decimal(i.quantity), i.time_in_force, sim.intent_state(i)) for i in sales] == [
        ("2024-01-09", whole, auction, "done"),
        ("2024-01-10", Decimal("0.5"), "day", "done"),
    ]
    assert "rejected" not in sim.alert_kinds()
    sim.assert_journal_matches_broker()


def test_untradable_fraction_is_alerted_and_kept(tmp_path: Path) -> None:
    sim = daemon_with_fractional_share(tmp_path)
    sim.broker.overrides["assets"] = lambda original, symbols: {s: Asset(s, tradable=True) for s in symbols}
    sim.day(date(2024, 1, 11))
    assert sim.daemon.trader.positions["AA"] == Decimal("0.5")
    assert "AA" not in {i.symbol for i in sim.intents() if i.bar == "2024-01-10"}
    assert any("AA is not traded: 0.5 shares" in message for _, _, message in sim.alerts)
    assert "rejected" not in sim.alert_kinds()
    sim.assert_journal_matches_broker()


def test_every_expired_order_is_alerted(tmp_path: Path) -> None:
    """Limit prices so close to the decision's that the auctions' prices are beyond many of them."""
    sim = SimulatedDaemon(tmp_path, config(orders=OrderSettings(collar=0.001)))
    sim.day(date(2024, 1, 17))
    expired = [i for i in sim.intents() if sim.intent_state(i) == "expired"]
    assert expired
    alerted = [message.split(" shares were filled in time")[0] for _, kind, message in sim.alerts if kind == "expired"]
    filled = {i.id: int(sum(Decimal(f.quantity) for f in fills_of(sim, i))) for i in expired}
    assert alerted == [f"{i.side} {i.symbol}: {filled[i.id]} of {i.quantity}" for i in expired]
    assert max(filled.values()) > 0  # one was filled in part


def fills_of(sim: SimulatedDaemon, intent: Any) -> list[Any]:
    orders = {row.id for row in sim.store.rows(schema.orders, schema.orders.c.intent_id == intent.id)}
    return [row for row in sim.store.rows(schema.fills) if row.order_id in orders]


def test_untradable_symbol_is_skipped(tmp_path: Path) -> None:
    """After the first start, which refuses such a symbol."""
    sim = SimulatedDaemon(tmp_path, strategy=FunctionStrategy(lambda window: np.array([0.3, 0.3, 0.3])))
    sim.day(DAY, hour=10)  # recovered, not decided yet
    sim.broker.overrides["assets"] = lambda original, symbols: {
        **original(symbols), "BB": Asset("BB", tradable=False)
    }  # fmt: skip
    sim.day(DAY)
    assert {o.symbol for o in own_orders(sim)} == {"AA", "CC"}


def raise_error(window: Any) -> Any:
    raise RuntimeError("division by zero")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (raise_error, "raised RuntimeError: division by zero"),
        (lambda window: np.array([np.nan, 0, 0]), "must be finite, got nan"),
        (lambda window: np.array([0.5, 0.5]), "must return 3 weights"),
        (lambda window: np.array([0.9, 0.9, 0.0]), "got 1.8"),
        (lambda window: np.array([-0.2, 0.5, 0.0]), "must not be negative without short selling"),
        (lambda window: "buy!", "must return numbers or None, got str"),
    ],
)
def test_failing_strategy_trades_nothing_and_the_daemon_continues(tmp_path: Path, function: Any, expected: str) -> None:
    sim = SimulatedDaemon(tmp_path, strategy=FunctionStrategy(function))
    sim.day(DAY)
    decisions = sim.store.rows(schema.decisions)
    assert [row.outcome for row in decisions] == ["failed"]
    assert expected in decisions[0].detail
    assert "failed" in sim.alert_kinds()
    assert not own_orders(sim)
