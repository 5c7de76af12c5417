"""What a broker can do to an order, and what must come of it. The daemon's own loop runs, on a simulated market."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finrl_pod.errors import BrokerUnavailable, JournalError, KeysRefused
from finrl_pod.paper.intents import Intent
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import CommandName, ask, outcome
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.records import (
    ActionKind,
    Ambiguous,
    Asset,
    Confirmed,
    CorporateAction,
    OrderRequest,
    OrderStatus,
    OrderType,
    Reason,
    Rejected,
    Side,
    TimeInForce,
)
from finrl_pod.paper.risk import RiskState
from finrl_pod.paper.settings import DataSettings, OrderSettings, RiskSettings
from tests.paper.made import Sparing, Swapping, Told, World, config

DAY = date(2024, 1, 9)  # the first orders fill here


def first(times: int, otherwise: Any) -> Any:
    """Do something odd at the first calls, then what the broker does."""
    left = [times]

    def odd(true: Any, *arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            return otherwise(true, *arguments)
        return true(*arguments)

    return odd


def orders(world: World) -> list[Any]:
    return [o for o in world.account.orders("all") if o.client_order_id.startswith("fp1.")]


# ---------------------------------------------------------------------- of one order


def test_a_post_that_hangs_is_looked_up_and_sent_again_under_its_one_id(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.broker.instead["submit"] = first(1, lambda true, request: Ambiguous("timeout"))
    world.day(DAY)
    lookups = [a[0] for name, a in world.broker.calls if name == "order_by_client_id"]
    assert len(lookups) >= 2  # one "not found" proves nothing
    posts = [a[0].client_order_id for name, a in world.broker.calls if name == "submit"]
    assert posts.count(lookups[0]) == 2
    assert len(orders(world)) == len(set(posts))
    world.check_agreement()


def test_an_answer_lost_after_the_broker_took_the_order_leads_to_one_order(tmp_path: Path) -> None:
    world = World(tmp_path)

    def lose(true: Any, request: Any) -> Any:
        true(request)
        return Ambiguous("504 after it was taken")

    world.broker.instead["submit"] = lose
    world.day(DAY)
    assert world.broker.called("submit") == len(orders(world))
    assert all(o.status is OrderStatus.FILLED for o in orders(world))
    world.check_agreement()


def test_an_order_that_only_appears_later_is_adopted(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.broker.instead["submit"] = first(1, lambda true, request: (true(request), Ambiguous("504"))[1])
    world.broker.instead["order_by_client_id"] = first(2, lambda true, name: None)
    world.day(DAY)
    assert world.broker.called("submit") == len(orders(world))
    world.check_agreement()


def test_while_nobody_answers_look_ups_an_order_stays_unknown_and_nothing_else_is_sent_for_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    sent: list[str] = []

    def silent(true: Any, request: Any) -> Any:
        sent.append(request.client_order_id)
        return Ambiguous("timeout")

    def down(true: Any, *arguments: Any) -> Any:
        raise BrokerUnavailable("no answer")

    world.broker.instead["submit"] = silent
    world.broker.instead["order_by_client_id"] = down
    world.day(DAY)
    assert len(sent) == len(set(sent)) == 2
    assert not orders(world)


def test_a_taken_name_is_success_only_for_the_same_order(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.broker.instead["submit"] = first(1, lambda true, request: (true(request), true(request))[1])
    world.day(DAY)
    assert world.daemon._p.risk.state is RiskState.ACTIVE
    world.check_agreement()


def test_a_taken_name_of_another_order_halts(tmp_path: Path) -> None:
    world = World(tmp_path)

    def squat(true: Any, request: OrderRequest) -> Any:
        true(OrderRequest(request.client_order_id, request.symbol, request.side, Decimal(1), request.time_in_force))
        return true(request)

    world.broker.instead["submit"] = first(1, squat)
    world.day(DAY)
    assert world.daemon._p.risk.state is RiskState.HALTED
    assert "halted" in world.kinds()
    assert len(orders(world)) == 1


@pytest.mark.parametrize("reason", [Reason.INVALID, Reason.BUYING_POWER, Reason.NOT_TRADABLE])
def test_a_refusal_ends_the_intent_and_the_next_decision_starts_anew(tmp_path: Path, reason: Reason) -> None:
    world = World(tmp_path)
    world.broker.instead["submit"] = first(1, lambda true, request: Rejected(reason, "no"))
    world.day(DAY)
    refused = next(i for i in world.intents() if world.state_of(i) == "rejected")
    assert sum(1 for name, a in world.broker.calls if name == "submit" and a[0].symbol == refused.symbol) == 1
    world.day(date(2024, 1, 12))
    assert {o.symbol for o in orders(world)} >= {refused.symbol}
    world.check_agreement()


def test_shares_held_for_another_order_are_waited_for_with_a_capped_retry(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.day(DAY)

    def held(true: Any, request: OrderRequest) -> Any:
        return Rejected(Reason.HELD_FOR_ORDERS, "held_for_orders") if request.side is Side.SELL else true(request)

    world.broker.instead["submit"] = held
    world.day(date(2024, 1, 10))
    tries = [a[0].client_order_id for name, a in world.broker.calls if name == "submit" and a[0].side is Side.SELL]
    assert len(tries) == len(set(tries)) == 3
    world.check_agreement()


def test_a_wash_trade_against_a_foreign_order_is_given_up_and_that_order_left_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.account._shares["AA"] = Decimal(50)
    world.run_to(datetime(2024, 1, 9, 13, tzinfo=UTC))
    world.account.submit(OrderRequest("by-hand", "AA", Side.SELL, Decimal(5), TimeInForce.CLS))
    world.day(DAY, hour=15)
    ours = [i for i in world.intents() if i.symbol == "AA"]
    assert [world.state_of(i) for i in ours] == ["rejected"]
    assert world.account.order_by_client_id("by-hand").status is OrderStatus.FILLED  # type: ignore[union-attr]
    assert not any(name == "cancel" for name, _ in world.broker.calls)


def test_a_limit_of_requests_is_waited_for_and_the_same_order_sent_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    until = []

    def limited(true: Any, request: Any) -> Any:
        until.append(world.clock.now() + timedelta(seconds=40))
        return Rejected(Reason.RATE_LIMITED, "rate limit exceeded", retry_at=until[0])

    world.broker.instead["submit"] = first(1, limited)
    world.day(DAY)
    taken = min(o.submitted_at for o in orders(world))
    assert taken >= until[0]
    world.check_agreement()


def test_refused_keys_end_the_daemon_with_an_alert(tmp_path: Path) -> None:
    world = World(tmp_path)

    def refuse(true: Any, request: Any) -> Any:
        raise KeysRefused("the keys were refused (401)")

    world.broker.instead["submit"] = refuse
    with pytest.raises(KeysRefused):
        world.day(DAY)
    assert "keys" in world.kinds()
    assert not orders(world)


def test_a_cancel_that_races_a_fill_books_the_fill(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    assert world.daemon._p.book.live_orders()

    def late(true: Any, order_id: str) -> Any:
        world.clock.sleep(1800)  # the auction is held meanwhile
        return true(order_id)

    world.broker.instead["cancel"] = first(1, late)
    number = ask(world.store, CommandName.HALT, world.clock.now())
    world.day(DAY, hour=16)
    assert outcome(world.store, number) == "halted, no own order is live"
    assert all(o.status is OrderStatus.FILLED for o in orders(world))
    world.check_agreement()


@pytest.mark.parametrize("more", [-1, 0, 5])
def test_an_order_that_somebody_replaced_stays_with_its_intent(tmp_path: Path, more: int) -> None:
    world = World(tmp_path)
    world.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    old = orders(world)[0]
    limit = old.limit_price * (2 if old.side is Side.BUY else Decimal("0.5"))
    request = OrderRequest("fp1.by-hand", old.symbol, old.side, old.quantity + more, old.time_in_force, old.type, limit)
    replaced = world.account.replace(old.id, request)
    assert isinstance(replaced, Confirmed)
    world.day(DAY)
    row = next(r for r in world.store.rows(schema.orders) if r.client_order_id == "fp1.by-hand")
    assert (row.replaces, row.attempt) == (old.client_order_id, 1)
    after = world.account.order_by_client_id("fp1.by-hand")
    assert after is not None
    if more > 0:  # more than was wanted: it is taken back
        assert after.status is OrderStatus.CANCELED
    else:
        assert (after.status, after.filled_quantity) == (OrderStatus.FILLED, old.quantity + more)
    assert not world.daemon._p.book.foreign()
    assert "replaced" in world.kinds()
    world.check_agreement()
    world.restart()
    world.day(date(2024, 1, 10))
    assert "mismatch" not in world.kinds()
    world.check_agreement()


def test_a_purchase_against_our_own_sale_cancels_it_first(tmp_path: Path) -> None:
    loose = RiskSettings(max_position=1.5, max_gross=1.5, max_net=1.5, max_order=1.0, daily_loss=0.9, drawdown=0.9)
    world = World(tmp_path, config(risk=loose))
    world.day(DAY)
    world.run_to(datetime(2024, 1, 10, 14, 10, tzinfo=UTC))
    sale = next(o for o in orders(world) if o.live and o.side is Side.SELL)
    refused: list[str] = []

    def wash(true: Any, request: OrderRequest) -> Any:
        standing = world.account.order(sale.id)
        if request.side is Side.BUY and standing is not None and standing.live:
            refused.append(request.client_order_id)
            return Rejected(Reason.WASH_TRADE, "potential wash trade detected")
        return true(request)

    world.broker.instead["submit"] = wash
    desk, now = world.daemon._p.desk, world.clock.now()
    wish = Intent(
        "test", "by-hand", sale.symbol, Side.BUY, Decimal(1), TimeInForce.OPG, OrderType.MARKET, None, Decimal(50), now,
        now + timedelta(minutes=10), now + timedelta(hours=1),
    )  # fmt: skip
    with world.store.write() as connection:
        planned = desk.book.plan(connection, now, [wish])
    desk.book.adopt(planned)
    world.day(date(2024, 1, 10))
    assert len(refused) == 1
    assert world.account.order(sale.id).status is OrderStatus.CANCELED  # type: ignore[union-attr]
    # Taken on the second try; the cash that the sale would have brought is what it lacks.
    assert [o.client_order_id[-2:] for o in orders(world) if "byhand" in o.client_order_id] == ["b1"]
    world.check_agreement()


# ---------------------------------------------------------------------- of the stream, and of reads


def test_updates_told_twice_and_backwards_are_booked_once(tmp_path: Path) -> None:
    world = World(tmp_path, config(orders=OrderSettings(fractional=True, collar=0.2)), kind=Sparing)
    told: list[Any] = []

    def jumbled(true: Any) -> Any:
        told.extend(true())
        return tuple(reversed(told)) + tuple(told)

    world.broker.instead["updates"] = jumbled
    world.run_to(datetime(2024, 1, 9, 15, tzinfo=UTC))
    assert world.store.count(schema.fills) == 2
    world.check_agreement()


def test_a_silent_stream_costs_nothing_but_time(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.broker.instead["updates"] = lambda true: ()
    world.day(date(2024, 1, 11))
    assert world.store.count(schema.fills) > 4
    world.check_agreement()


@pytest.mark.parametrize("call", ["positions", "account", "orders", "fills_since"])
def test_a_read_that_fails_is_not_taken_for_nothing(tmp_path: Path, call: str) -> None:
    world = World(tmp_path)
    world.day(DAY)
    sent = world.broker.called("submit")

    def fail(true: Any, *arguments: Any, **named: Any) -> Any:
        raise BrokerUnavailable("no answer")

    world.broker.instead[call] = fail
    world.day(date(2024, 1, 10))
    assert world.broker.called("submit") == sent
    assert "unavailable" in world.kinds()
    world.broker.instead.clear()
    world.day(date(2024, 1, 11))
    assert world.broker.called("submit") > sent
    world.check_agreement()


# ---------------------------------------------------------------------- of prices and strategies


def spoiled(field: str, value: float, symbol: int = 0, rows: slice = slice(-1, None)) -> Any:
    def bars(true: Any, *arguments: Any) -> Any:
        table = true(*arguments)
        getattr(table, field)[rows, symbol] = value
        return table

    return bars


@pytest.mark.parametrize("value", [np.nan, 0.0, -5.0])
def test_a_faulty_bar_leaves_its_symbol_alone_and_the_rest_goes_on(tmp_path: Path, value: float) -> None:
    world = World(tmp_path, strategy=Told(lambda window: np.array([0.3, 0.3, 0.3])))
    world.broker.instead["bars"] = spoiled("close", value)
    world.day(DAY)
    assert {o.symbol for o in orders(world)} == {"BB", "CC"}
    assert "prices" in world.kinds()
    world.check_agreement()


def test_stale_prices_stop_every_order(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.broker.instead["bars"] = lambda true, symbols, start, end, how: true(
        symbols, start, end - timedelta(days=1), how
    )
    world.day(DAY)
    assert not orders(world)
    assert any("stale" in message for _, _, message in world.told)
    assert [r.outcome for r in world.store.rows(schema.decisions)] == ["missed"]


def jumped(factor: float) -> Any:
    """From the decision bar of 2024-01-09 on, AA trades at another price."""

    def bars(true: Any, *arguments: Any) -> Any:
        table = true(*arguments)
        late = table.times >= np.datetime64("2024-01-09")
        for column in (table.open, table.high, table.low, table.close):
            column[late, 0] *= factor
        return table

    return bars


def test_a_real_move_trades_on_and_a_jump_that_nothing_explains_halts_its_symbol(tmp_path: Path) -> None:
    for factor, halted in ((0.65, False), (0.5, True)):
        folder = tmp_path / str(factor)
        folder.mkdir()
        world = World(folder, config(data=DataSettings(window=0)), Swapping3())
        world.broker.instead["bars"] = jumped(factor)
        world.day(date(2024, 1, 10))
        assert ("symbol_halted" in world.kinds()) is halted
        later = {i.symbol for i in world.intents() if i.bar == "2024-01-09"}
        assert ("AA" in later) is not halted


class Swapping3(Swapping):
    def target_weights(self, window: Any, positions: Any) -> Any:
        return np.array([0.2, 0.4, 0.3]) if np.any(positions.weights) else np.array([0.5, 0.2, 0.2])


def test_a_split_is_booked_once_and_explains_the_jump(tmp_path: Path) -> None:
    world = World(tmp_path, strategy=Swapping3())
    split = CorporateAction("s1", ActionKind.SPLIT, "AA", date(2024, 1, 10), new=Decimal(2))
    world.day(DAY)
    before = world.daemon.trader.positions["AA"]
    equity = world.daemon.trader.equity()
    world.account._shares["AA"] *= 2
    world.broker.instead["corporate_actions"] = lambda true, *arguments: (split,)

    def halved(true: Any, *arguments: Any) -> Any:
        table = true(*arguments)
        late = table.times >= np.datetime64("2024-01-10")
        for column in (table.open, table.high, table.low, table.close):
            column[late, 0] /= 2
            if arguments[-1] == "all":
                column[~late, 0] /= 2
        return table

    world.broker.instead["bars"] = halved
    world.run_to(datetime(2024, 1, 10, 14, 10, tzinfo=UTC))
    assert world.daemon.trader.positions["AA"] == 2 * before
    world.restart()
    world.run_to(datetime(2024, 1, 10, 14, 20, tzinfo=UTC))
    assert world.daemon.trader.positions["AA"] == 2 * before
    assert world.store.count(schema.corporate_actions) == 1
    assert "symbol_halted" not in world.kinds()
    assert not world.daemon._p.reconciler.differences
    assert equity > 0


def test_a_symbol_that_the_broker_does_not_trade_is_skipped(tmp_path: Path) -> None:
    world = World(tmp_path, strategy=Told(lambda window: np.array([0.3, 0.3, 0.3])))
    world.broker.instead["assets"] = lambda true, symbols: {
        **true(symbols), "BB": Asset("BB", tradable=False)
    }  # fmt: skip
    world.day(DAY)
    assert {o.symbol for o in orders(world)} == {"AA", "CC"}


def raising(window: Any) -> Any:
    raise RuntimeError("out of ideas")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (raising, "raised RuntimeError: out of ideas"),
        (lambda window: np.array([np.nan, 0, 0]), "not finite"),
        (lambda window: np.array([0.5, 0.5]), "must return 3 weights"),
        (lambda window: np.array([0.9, 0.9, 0.0]), "add up to 1.8"),
        (lambda window: np.array([-0.2, 0.5, 0.0]), "short selling is off"),
        (lambda window: "buy!", "must return numbers or None, got str"),
    ],
)
def test_a_strategy_that_fails_trades_nothing_and_the_daemon_lives_on(tmp_path: Path, answer: Any, words: str) -> None:
    world = World(tmp_path, strategy=Told(answer))
    world.day(DAY)
    decisions = world.store.rows(schema.decisions)
    assert [row.outcome for row in decisions] == ["failed"]
    assert words in decisions[0].detail
    assert "failed" in world.kinds()
    assert not orders(world)


# ---------------------------------------------------------------------- of limits and commands


def test_a_loss_beyond_the_limit_leaves_reducing_orders_only_until_resumed(tmp_path: Path) -> None:
    limits = RiskSettings(max_position=1.0, max_order=1.0, max_turnover=4.0, daily_loss=0.001, drawdown=0.9)
    world = World(tmp_path, config(risk=limits))
    world.day(date(2024, 1, 25))
    assert world.daemon._p.risk.state is RiskState.REDUCING
    since = next(row.at for row in world.store.rows(schema.risk_states))
    later = [i for i in world.intents() if i.at > since]
    assert {world.state_of(i) for i in later if i.side == "buy"} == {"withheld"}
    assert {world.state_of(i) for i in later if i.side == "sell"} <= {"done"}
    world.restart()
    assert world.daemon._p.risk.state is RiskState.REDUCING
    ask(world.store, CommandName.RESUME, world.clock.now())
    world.clock.sleep(3600)
    world.daemon.step()
    assert world.daemon._p.risk.state is RiskState.ACTIVE
    world.check_agreement()


def test_a_halt_given_while_down_holds_at_the_next_start_and_survives_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.day(DAY)
    sent = world.broker.called("submit")
    ask(world.store, CommandName.HALT, world.clock.now())
    world.restart()
    world.day(date(2024, 1, 11))
    world.restart()
    assert world.daemon._p.risk.state is RiskState.HALTED
    world.day(date(2024, 1, 12))
    assert world.broker.called("submit") == sent


def test_a_halt_works_while_the_loop_waits_in_the_middle_of_sending(tmp_path: Path) -> None:
    world = World(tmp_path)

    def slow(true: Any, request: Any) -> Any:
        ask(world.store, CommandName.HALT, world.clock.now())
        return Ambiguous("timeout")

    world.broker.instead["submit"] = first(1, slow)
    world.day(DAY)
    assert world.daemon._p.risk.state is RiskState.HALTED
    assert world.broker.called("submit") == 1
    assert not orders(world)


def test_flatten_sells_own_shares_alone_and_nothing_is_bought_after(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.account._shares["BB"] = Decimal(7)
    world.day(DAY, hour=15)
    number = ask(world.store, CommandName.FLATTEN, world.clock.now())
    world.day(date(2024, 1, 10), hour=20)
    assert "are being sold" in str(outcome(world.store, number))
    assert {p.symbol: p.quantity for p in world.account.positions()} == {"BB": Decimal(7)}
    assert not any(world.daemon.trader.positions.values())
    world.day(date(2024, 1, 12))
    assert {p.symbol: p.quantity for p in world.account.positions()} == {"BB": Decimal(7)}
    world.check_agreement()


def test_stopping_cancels_own_orders_and_leaves_foreign_ones(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    world.account.submit(OrderRequest("by-hand", "CC", Side.BUY, Decimal(1), TimeInForce.CLS))
    world.daemon.stop()
    world.daemon.run()
    assert {o.status for o in orders(world)} == {OrderStatus.CANCELED}
    assert world.account.order_by_client_id("by-hand").live  # type: ignore[union-attr]
    world.check_agreement()


def test_a_stop_by_command_is_answered_and_does_not_stop_the_next_start(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    number = ask(world.store, CommandName.STOP, world.clock.now())
    world.daemon.run()
    assert outcome(world.store, number) == "stopping"
    assert {o.status for o in orders(world)} == {OrderStatus.CANCELED}
    world.restart()
    world.day(date(2024, 1, 11))
    assert len(orders(world)) > 2


def test_a_journal_that_cannot_be_written_stops_everything_and_cancels_what_is_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    sent = world.broker.called("submit")

    def full(store: Store) -> Any:
        raise JournalError("the journal cannot be used (database or disk is full): free some space")

    monkeypatch.setattr(Store, "write", full)
    number = len([name for name, _ in world.broker.calls if name == "cancel"])
    with pytest.raises(JournalError):
        world.daemon._p.alert("warning", "test", "something to write")
    monkeypatch.setattr(world.daemon._p.desk, "listen", lambda: full(world.store))
    with pytest.raises(JournalError):
        world.daemon.run()
    assert {o.status for o in orders(world)} == {OrderStatus.CANCELED}
    assert len([name for name, _ in world.broker.calls if name == "cancel"]) > number
    assert world.broker.called("submit") == sent


def test_an_order_that_vanishes_halts(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run_to(datetime(2024, 1, 9, 14, 10, tzinfo=UTC))
    world.account._orders.clear()
    world.account._by_client.clear()
    world.day(DAY)
    assert world.daemon._p.risk.state is RiskState.HALTED
    assert any("vanished" in message for _, _, message in world.told)
    ask(world.store, CommandName.ACKNOWLEDGE, world.clock.now())
    world.clock.sleep(60)
    world.daemon.step()
    assert not world.daemon._p.book.open


def test_a_host_clock_that_is_off_follows_the_brokers_and_tells(tmp_path: Path) -> None:
    import dataclasses

    world = World(tmp_path)
    world.broker.instead["clock"] = lambda true: dataclasses.replace(
        true(), now=world.clock.now() + timedelta(minutes=5)
    )
    world.day(DAY)
    assert "clock" in world.kinds()
    decided = world.store.rows(schema.decisions)[0]
    assert datetime.fromisoformat(decided.at) - timedelta(minutes=5) < datetime(2024, 1, 9, 14, 0, tzinfo=UTC)


def test_confirmed_without_an_order_is_settled_by_asking(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.broker.instead["submit"] = lambda true, request: (true(request), Confirmed())[1]
    world.day(DAY)
    assert all(world.state_of(i) == "done" for i in world.intents())
    world.check_agreement()
