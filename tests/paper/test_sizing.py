"""Sizing orders from weights: rounding, affordability and accuracy."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finrl_pod.market.orders import SizingRules, limit_price, size_orders

prices = st.decimals("0.5", "900", places=2)
books = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 300), prices, st.booleans()), min_size=1, max_size=6)
rules = st.builds(
    SizingRules,
    cash_buffer=st.sampled_from([Decimal(0), Decimal("0.02"), Decimal("0.3")]),
    fractional=st.booleans(),
    min_value=st.sampled_from([Decimal(1), Decimal(50)]),
    cost_rate=st.sampled_from([Decimal(0), Decimal("0.001")]),
)


@given(books, st.decimals("0", "50000", places=2), rules)
def test_orders_are_rounded_and_affordable_and_never_short(
    ledger: list[tuple[float, int, Decimal, bool]], cash: Decimal, terms: SizingRules
) -> None:
    total = sum(w for w, *_ in ledger) or 1.0
    weights = [w / max(total, 1.0) for w, *_ in ledger]
    shares = [Decimal(s) for _, s, _, _ in ledger]
    cost = [p for _, _, p, _ in ledger]
    fixed = [f for *_, f in ledger]
    trades = size_orders(weights, cash, shares, cost, fixed, terms)
    equity = cash + sum((s * p for s, p in zip(shares, cost, strict=True)), Decimal(0))
    remaining = cash
    for q, held, price, excluded in zip(trades, shares, cost, fixed, strict=True):
        assert not (excluded and q)
        assert held + q >= 0
        assert q == 0 or abs(q) * price >= terms.min_value
        assert q == q.quantize(Decimal("1e-9") if terms.fractional else Decimal(1))
        remaining -= q * price + abs(q) * price * terms.cost_rate
    bought = any(q > 0 for q in trades)
    assert not bought or remaining >= terms.cash_buffer * equity - Decimal("1e-6")


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.data())
def test_fractional_orders_match_target_values(raw: list[float], data: st.DataObject) -> None:
    weights = [w / sum(raw) for w in raw]
    cost = [data.draw(prices) for _ in weights]
    terms = SizingRules(cash_buffer=Decimal("0.1"), fractional=True, min_value=Decimal(0))
    trades = size_orders(weights, Decimal(100_000), [Decimal(0)] * len(cost), cost, [False] * len(cost), terms)
    for weight, q, price in zip(weights, trades, cost, strict=True):
        assert abs(float(q * price) - weight * 90_000) < 1e-4


@pytest.mark.parametrize(("held", "sold"), [("3.5", "3"), ("0.5", "0.5"), ("3", "3"), ("0.05", "0")])
def test_position_is_closed_in_whole_shares_before_the_fraction(held: str, sold: str) -> None:
    terms = SizingRules(fractional=False)  # orders equity less than 1 are omitted
    trades = size_orders([0.0], Decimal(0), [Decimal(held)], [Decimal(10)], [False], terms)
    assert trades == [-Decimal(sold)]


def test_fractional_position_is_closed_in_one_order() -> None:
    terms = SizingRules(fractional=True)
    assert size_orders([0.0], Decimal(0), [Decimal("3.5")], [Decimal(10)], [False], terms) == [Decimal("-3.5")]


def test_limit_prices_are_rounded_to_broker_ticks() -> None:
    assert limit_price(Decimal("10.005"), Decimal(1), Decimal("0.1")) == Decimal("11.01")
    assert limit_price(Decimal("0.5"), Decimal(-1), Decimal("0.1")) == Decimal("0.4500")
