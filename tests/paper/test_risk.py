"""Risk limits of orders."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from finrl_pod.errors import ConfigError
from finrl_pod.paper.domain.records import OrderRequest, OrderType, Side, TimeInForce
from finrl_pod.paper.execution.risk import Exposure, RiskManager
from finrl_pod.paper.journal.commands import RiskState
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.settings import OrderSettings, RiskSettings, parse

NOW = datetime(2024, 1, 2, tzinfo=UTC)
LIMITS = RiskSettings(max_position=0.3, max_gross=0.8, max_net=0.7, max_order=0.25, max_turnover=0.5)


def buy(shares: int, side: Side = Side.BUY, limit: str | None = None) -> OrderRequest:
    kind = OrderType.MARKET if limit is None else OrderType.LIMIT
    price = None if limit is None else Decimal(limit)
    return OrderRequest("n", "A", side, Decimal(shares), TimeInForce.DAY, kind, price)


def exposure(a: int = 0, b: int = 0, live: int = 0, traded: int = 0, account: int | None = None) -> Exposure:
    """Equity 10,000; A and B cost 10. account: shares of A at the broker."""
    held, prices = {"A": Decimal(a), "B": Decimal(b)}, {"A": Decimal(10), "B": Decimal(10)}
    there = None if account is None else {"A": Decimal(account)}
    return Exposure(Decimal(10_000), held, {"A": Decimal(live)}, prices, Decimal(traded), there)


@pytest.fixture
def risk(tmp_path: Path) -> RiskManager:
    return RiskManager(Store.create_or_open(tmp_path / "j.sqlite"), LIMITS, OrderSettings(collar=0.1))


@pytest.mark.parametrize(
    ("request_", "state", "expected"),
    [
        (buy(250), exposure(), None),
        (buy(251), exposure(), "order would be 25.1%"),
        (buy(101), exposure(a=200), "position would be 30.1%"),
        (buy(101), exposure(a=100, live=100), "position would be 30.1%"),
        (buy(200), exposure(b=610), "gross exposure would be 81.0%"),
        (buy(200), exposure(b=510), "net exposure would be 71.0%"),
        (buy(200), exposure(traded=3100), "daily turnover would be 51.0%"),
        (buy(900, Side.SELL), exposure(a=900, traded=9000), None),
        (buy(100, Side.SELL), exposure(a=99), "sells 100 shares, but 99 own shares are held"),
        (buy(100, Side.SELL), exposure(a=100, account=99), "sells 100 shares, but the account holds 99"),
        (buy(100, Side.SELL), exposure(a=100, account=100), None),
        (buy(100, limit="11.00"), exposure(), None),
        (buy(100, limit="11.20"), exposure(), "12.00% from the decision's price"),
    ],
)
def test_each_limit_is_enforced(
    risk: RiskManager, request_: OrderRequest, state: Exposure, expected: str | None
) -> None:
    refusal = risk.refusal(request_, Decimal(10), state)
    assert refusal is None if expected is None else expected in str(refusal)


def test_risk_states_restrict_orders(risk: RiskManager) -> None:
    sale, increase, reversal = buy(50, Side.SELL), buy(50), buy(150, Side.SELL)
    risk.set(RiskState.REDUCING, "test", NOW)
    assert risk.refusal(sale, Decimal(10), exposure(a=100)) is None
    assert "only reducing" in str(risk.refusal(increase, Decimal(10), exposure(a=100)))
    assert "only reducing" in str(risk.refusal(reversal, Decimal(10), exposure(a=100)))
    risk.set(RiskState.HALTED, "test", NOW)
    assert "halted" in str(risk.refusal(sale, Decimal(10), exposure(a=100)))


def test_tighten_never_loosens_the_state(risk: RiskManager) -> None:
    assert risk.tighten(RiskState.HALTED, "a", NOW)
    assert not risk.tighten(RiskState.REDUCING, "b", NOW)
    assert (risk.state, risk.reason) == (RiskState.HALTED, "a")


def test_loss_breach_reports_percentages(risk: RiskManager) -> None:
    assert risk.loss_breach(Decimal(96), Decimal(100), Decimal(100)) is None
    assert "loss of 6.00%" in str(risk.loss_breach(Decimal(94), Decimal(100), Decimal(100)))
    assert "drawdown of 26.00%" in str(risk.loss_breach(Decimal(74), Decimal(75), Decimal(100)))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"risk": {"max_position": 1.5}}, "max_position must be at most risk.max_gross 1, got 1.5"),
        ({"risk": {"max_net": 2.0}}, "max_net must be at most risk.max_gross 1, got 2"),
        ({"risk": {"daily_loss": 0.0}}, "risk.daily_loss is out of its range, got 0.0: it must be above 0"),
        ({"broker": {"cost_bps": -1.0}}, "config: broker.cost_bps is out of its range, got -1.0"),
        ({"orders": {"min_value": -1.0}}, "orders.min_value is out of its range"),
        ({"orders": {"collar": 1.0}}, "orders.collar is out of its range, got 1.0: it must be 0 or more and below 1"),
        ({"data": {"window": 10**9}}, "data.window is out of its range"),
        ({"monitoring": {"port": 70_000}}, "monitoring.port is out of its range, got 70000: it must be 0 to 65,535"),
        ({"timing": {"poll": 0.0}}, "timing.poll is out of its range"),
        ({"schedule": {"lead_minutes": 1}}, "schedule.lead_minutes is out of its range, got 1.0: it must be 3 to 180"),
        (
            {"name": "two\nlines"},
            r"config: name is out of its range, got 'two\\nlines': it must be 1 to 64 printable characters",
        ),
        ({"name": ""}, "config: name is out of its range"),
        ({"capital": 1e15}, "config: capital is out of its range"),
        ({"risk": {"max_positon": 0.1}}, "did you mean max_position"),
        ({"capital": -5.0}, "config: capital is out of its range, got -5.0: it must be above 0"),
        ({"symbols": ["A", "A"]}, "each symbol to trade once"),
        ({"run": "runs/x"}, "set exactly one of strategy .*, run .*, champion .* and .*strategies"),
        ({"champion": "main"}, "set exactly one of strategy"),
        ({"registry": "s3://b"}, "registry is only read for a champion"),
        ({"schedule": {"mode": "close", "lead_minutes": 5}}, "must be at least 11 for the closing auction.*got 5"),
        ({"schedule": {"mode": "close"}, "orders": {"fractional": True}}, "cannot join the closing auction"),
        ({"schedule": {"mode": "close"}, "orders": {"funding": "after_sales"}}, "cannot buy after the closing auction"),
        ({"data": {"window": 1}}, "data.window"),
    ],
)
def test_invalid_settings_are_refused(change: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse({"strategy": "equal_weight", "symbols": ["A"], **change})
