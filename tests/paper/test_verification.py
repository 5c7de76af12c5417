"""The comparison of the journal with the books of the broker names every difference."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from finrl_pod.errors import JournalError
from finrl_pod.paper.domain.records import FillPage, OrderRequest, Side, TimeInForce
from finrl_pod.paper.monitoring.verification import CHECKS, Verification, verify
from tests.paper.factories import PartialFillBroker, SimulatedDaemon, own_orders

pytestmark = pytest.mark.slow

DAY = date(2024, 1, 10)


def verified(sim: SimulatedDaemon) -> Verification:
    return verify(sim.store, sim.config, sim.broker, sim.clock)  # type: ignore[arg-type]


def test_equal_books_have_no_difference(tmp_path: Path) -> None:
    """Also with shares and orders of other clients, and with orders that filled in part."""
    sim = SimulatedDaemon(tmp_path, kind=PartialFillBroker)
    sim.account.submit(OrderRequest("by hand", "AA", Side.BUY, Decimal(3), TimeInForce.DAY))
    sim.day(DAY)
    calls = len(sim.broker.calls)
    assert verified(sim) == Verification(dict.fromkeys(CHECKS, True), ())
    assert {"submit", "cancel"}.isdisjoint(name for name, _ in sim.broker.calls[calls:])


def _lose_last_order(sim: SimulatedDaemon) -> dict[str, Callable[..., Any]]:
    lost = own_orders(sim)[-1].client_order_id
    return {"orders": lambda original, *a: tuple(o for o in original(*a) if o.client_order_id != lost)}


def _change_account(**amounts: int) -> Callable[[Any], dict[str, Callable[..., Any]]]:
    def change(original: Any) -> Any:
        account = original()
        return dataclasses.replace(account, **{name: getattr(account, name) + x for name, x in amounts.items()})

    return lambda _: {"account": change}


def _lose_last_fill(_: SimulatedDaemon) -> dict[str, Callable[..., Any]]:
    return {"fills_since": lambda original, cursor: FillPage(original(cursor).fills[:-1], None)}


def _lose_shares(_: SimulatedDaemon) -> dict[str, Callable[..., Any]]:
    return {"positions": lambda original: original()[1:]}


@pytest.mark.parametrize(
    ("fault", "checks"),
    [
        (_lose_last_order, {"orders"}),
        (_lose_last_fill, {"fills"}),
        (_lose_shares, {"positions", "equity"}),
        (_change_account(cash=-5), {"cash"}),
        (_change_account(equity=900), {"equity"}),
    ],
)
def test_each_difference_is_named(
    tmp_path: Path, fault: Callable[[SimulatedDaemon], dict[str, Callable[..., Any]]], checks: set[str]
) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(DAY)
    sim.broker.overrides = fault(sim)
    result = verified(sim)
    assert {name for name, is_equal in result.checks.items() if not is_equal} == checks
    assert {difference.check for difference in result.differences} == checks
    assert all(difference.ours != difference.broker for difference in result.differences)
    named = {difference.order for difference in result.differences if difference.check in ("orders", "fills")}
    assert named <= {order.client_order_id for order in own_orders(sim)}
    if checks == {"orders"}:
        assert [(d.order, d.broker) for d in result.differences] == [(own_orders(sim)[-1].client_order_id, "none")]


def test_difference_that_the_daemon_has_not_polled_yet_is_none(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(DAY)
    sim.broker.overrides = _change_account(cash=-5)(sim)
    original = sim.clock.sleep
    sim.clock.sleep = lambda *a: (sim.broker.overrides.clear(), original(*a))  # type: ignore[assignment, method-assign]
    assert not verified(sim).differences


def test_account_of_another_journal_is_refused(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path)
    sim.day(DAY)
    sim.broker.overrides = {"account": lambda original: dataclasses.replace(original(), id="another")}
    with pytest.raises(JournalError, match="belongs to account"):
        verified(sim)
