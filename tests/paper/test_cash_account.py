"""A cash account reserves limit prices, so that purchases must fit its buying power; and refusals at the start."""

from __future__ import annotations

import dataclasses
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finrl_pod.errors import ConfigError
from finrl_pod.market.orders import SizingRules
from finrl_pod.paper.brokers.simulated import SimulatedBroker
from finrl_pod.paper.domain.records import AccountState, Asset, OrderRequest, Outcome, Reason, Rejected, Side
from finrl_pod.paper.execution.order_plan import MIN_COLLAR, purchase_collar
from finrl_pod.paper.settings import OrderSettings
from tests.paper.factories import FunctionStrategy, SimulatedDaemon, config, prices

SETTINGS = config(orders=OrderSettings(collar=0.1))


class CashBroker(SimulatedBroker):
    """Reserves the limit prices of open purchases and refuses those beyond the cash, as Alpaca does."""

    def account(self) -> AccountState:
        state = super().account()
        bought = [o for o in self.orders("open") if o.side is Side.BUY]
        reserved = sum(((o.quantity - o.filled_quantity) * (o.limit_price or 0) for o in bought), Decimal(0))
        return dataclasses.replace(state, buying_power=max(state.cash - reserved, Decimal(0)))

    def submit(self, request: OrderRequest) -> Outcome:
        cost = request.quantity * (request.limit_price or 0)
        if request.side is Side.BUY and cost > self.account().buying_power:
            return Rejected(Reason.BUYING_POWER, "insufficient buying power")
        return super().submit(request)


def invested(sim: SimulatedDaemon) -> float:
    trader = sim.daemon.trader
    return float(1 - trader.cash / trader.equity())


@pytest.mark.slow
def test_whole_cash_is_invested_in_a_cash_account(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, SETTINGS, FunctionStrategy(lambda _: np.full(3, 1 / 3)), kind=CashBroker)
    sim.day(date(2024, 1, 11))
    assert invested(sim) > 0.95
    assert "rejected" not in sim.alert_kinds()


@pytest.mark.slow
@pytest.mark.parametrize(("fractional", "last_day"), [(False, date(2024, 1, 22)), (True, date(2024, 1, 12))])
def test_purchases_of_a_cash_account_follow_its_sales(tmp_path: Path, fractional: bool, last_day: date) -> None:
    """The proceeds are there in the next session, in which the kept target is bought.

    Fractions join no auction: they are bought later in the same session.
    """

    def decide(window: Any) -> Any:
        days = {"2024-01-08": np.array([0.98, 0.0, 0.0]), "2024-01-11": np.array([0.0, 0.5, 0.5])}
        return days.get(str(window.times[-1].astype("datetime64[D]")))

    settings = dataclasses.replace(SETTINGS, orders=OrderSettings(collar=0.1, fractional=fractional))
    sim = SimulatedDaemon(tmp_path, settings, FunctionStrategy(decide), kind=CashBroker, panel=prices(seed=1))
    sim.day(last_day)
    assert "rejected" not in sim.alert_kinds()
    assert sim.daemon.trader.positions["AA"] == 0
    assert invested(sim) > 0.9
    sim.assert_journal_matches_broker()


def test_collar_is_narrowed_to_the_buying_power() -> None:
    rules = SizingRules(collar=Decimal("0.1"))
    quantities, cost = [Decimal(10), Decimal(-5), Decimal(0)], [Decimal(100)] * 3
    assert purchase_collar(quantities, cost, rules, None) == rules.collar
    assert purchase_collar(quantities, cost, rules, Decimal(2000)) == rules.collar
    narrow = purchase_collar(quantities, cost, rules, Decimal(1020))
    assert Decimal("0.0198") < narrow < Decimal("0.02")
    assert purchase_collar(quantities, cost, rules, Decimal(500)) == MIN_COLLAR
    assert purchase_collar(quantities, cost, SizingRules(), Decimal(1)) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asset", "fractional", "expected"),
    [
        (None, False, "BB: unknown to the broker"),
        (Asset("BB", tradable=False, fractionable=True), False, "BB: not tradable at the broker"),
        (Asset("BB", tradable=True, fractionable=False), True, "BB: not traded in fractions"),
    ],
)
def test_symbols_that_cannot_be_traded_are_refused_at_the_first_start(
    tmp_path: Path, asset: Asset | None, fractional: bool, expected: str
) -> None:
    sim = SimulatedDaemon(tmp_path, config(orders=OrderSettings(fractional=fractional, collar=0.2)))

    def assets(original: Any, symbols: Any) -> Any:
        found = {s: a for s, a in original(symbols).items() if s != "BB"}
        return found if asset is None else {**found, "BB": asset}

    sim.broker.overrides["assets"] = assets
    with pytest.raises(ConfigError, match=expected):
        sim.day(date(2024, 1, 9))
    assert ("critical", "config") in {(level, kind) for level, kind, _ in sim.alerts}
    assert not sim.broker.called("submit")
    del sim.broker.overrides["assets"]
    sim.restart()
    sim.day(date(2024, 1, 9))
    sim.broker.overrides["assets"] = assets
    sim.restart()
    sim.day(date(2024, 1, 11))  # a journal with decisions: the symbol is skipped with an alert
    assert "symbol" in sim.alert_kinds()
