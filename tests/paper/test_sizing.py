"""Sizing orders from weights: rounding, affordability and accuracy."""

from __future__ import annotations

import sys
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finrl_pod.market.orders import (
    OrderLimits,
    SizingRules,
    limit_price,
    limited_weights,
    missing_shares,
    orders_within_limits,
    target_positions,
)

prices = st.decimals("0.5", "900", places=2)
books = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 300), prices, st.booleans()), min_size=1, max_size=6)
rules = st.builds(
    SizingRules,
    cash_buffer=st.sampled_from([Decimal(0), Decimal("0.02"), Decimal("0.3")]),
    fractional=st.booleans(),
    min_value=st.sampled_from([Decimal(1), Decimal(50)]),
    cost_rate=st.sampled_from([Decimal(0), Decimal("0.001")]),
)


def ordered(
    weights: list[float],
    cash: Decimal,
    shares: list[Decimal],
    cost: list[Decimal],
    fixed: list[bool],
    terms: SizingRules,
) -> list[Decimal]:
    """Orders towards `weights`, in the order in which the daemon sizes them."""
    missing = missing_shares(target_positions(weights, cash, shares, cost, fixed, terms), cash, shares, cost, terms)
    return orders_within_limits(missing, cash, shares, cost, fixed, terms)


@pytest.mark.slow
@given(books, st.decimals("0", "50000", places=2), rules)
def test_orders_are_rounded_and_affordable_and_never_short(
    ledger: list[tuple[float, int, Decimal, bool]], cash: Decimal, terms: SizingRules
) -> None:
    total = sum(w for w, *_ in ledger) or 1.0
    weights = [w / max(total, 1.0) for w, *_ in ledger]
    shares = [Decimal(s) for _, s, _, _ in ledger]
    cost = [p for _, _, p, _ in ledger]
    fixed = [f for *_, f in ledger]
    trades = ordered(weights, cash, shares, cost, fixed, terms)
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
    trades = ordered(weights, Decimal(100_000), [Decimal(0)] * len(cost), cost, [False] * len(cost), terms)
    for weight, q, price in zip(weights, trades, cost, strict=True):
        assert abs(float(q * price) - weight * 90_000) < 1e-4


@pytest.mark.parametrize(("held", "sold"), [("3.5", "3"), ("0.5", "0.5"), ("3", "3"), ("0.05", "0")])
def test_position_is_closed_in_whole_shares_before_the_fraction(held: str, sold: str) -> None:
    terms = SizingRules(fractional=False)  # orders equity less than 1 are omitted
    trades = ordered([0.0], Decimal(0), [Decimal(held)], [Decimal(10)], [False], terms)
    assert trades == [-Decimal(sold)]


def test_fractional_position_is_closed_in_one_order() -> None:
    terms = SizingRules(fractional=True)
    assert ordered([0.0], Decimal(0), [Decimal("3.5")], [Decimal(10)], [False], terms) == [Decimal("-3.5")]


def test_limit_prices_are_rounded_to_broker_ticks() -> None:
    assert limit_price(Decimal("10.005"), Decimal(1), Decimal("0.1")) == Decimal("11.01")
    assert limit_price(Decimal("0.5"), Decimal(-1), Decimal("0.1")) == Decimal("0.4500")


# ---------------------------------------------------------------------- limits


def rules_with(buffer: str = "0", **limits: str) -> SizingRules:
    values = {"max_position": "1", "max_gross": "1", "max_order": "1", "max_turnover": "2", **limits}
    bounds = OrderLimits(**{name: Decimal(value) for name, value in values.items()})
    return SizingRules(cash_buffer=Decimal(buffer), fractional=True, min_value=Decimal(0), limits=bounds)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0.05, 1))
def test_weights_are_cut_to_a_position_and_the_excess_is_spread_in_proportion(raw: list[float], largest: float) -> None:
    """The conditions that define the cut weights, each checked on its own."""
    weights = [w / max(sum(raw), 1.0) for w in raw]
    cut = limited_weights(weights, rules_with(max_position=repr(largest)))
    assert max(cut) <= largest * (1 + 1e-6)
    assert all(c == 0 for c, w in zip(cut, weights, strict=True) if w == 0)
    if max(weights) <= largest:
        assert cut == weights
    else:
        positive = sum(w >= sys.float_info.min for w in weights)
        assert sum(cut) == pytest.approx(min(sum(weights), positive * largest), abs=1e-6)
        below = [c / w for c, w in zip(cut, weights, strict=True) if w > 1e-9 and c < largest * (1 - 1e-6)]
        assert below == pytest.approx([below[0]] * len(below), rel=1e-4) if below else True


def test_limits_are_shares_of_equity_and_weights_of_what_is_invested() -> None:
    assert limited_weights([0.5, 0.5], rules_with("0.02", max_position="0.4")) == pytest.approx([0.4 / 0.98] * 2)
    assert sum(limited_weights([0.5, 0.5], rules_with(max_gross="0.6"))) == pytest.approx(0.6)
    assert limited_weights([0.5, 0.5], SizingRules()) == [0.5, 0.5]


def test_purchases_are_cut_to_an_order_and_the_turnover() -> None:
    cost, nothing = [Decimal(10), Decimal(10)], [Decimal(0), Decimal(0)]
    sized = ordered([0.5, 0.5], Decimal(1000), nothing, cost, [False] * 2, rules_with(max_order="0.2"))
    assert sized == [Decimal(20), Decimal(20)]
    sized = ordered([0.5, 0.5], Decimal(1000), nothing, cost, [False] * 2, rules_with(max_turnover="0.5"))
    assert sum(sized) == Decimal(50)
    held = [Decimal(100), Decimal(0)]  # a sale is never cut; what is left of the turnover is bought
    sized = ordered([0.0, 1.0], Decimal(0), held, cost, [False] * 2, rules_with(max_turnover="1.5"))
    assert sized == [Decimal(-100), Decimal(50)]
    sized = ordered([0.0, 0.0], Decimal(0), held, cost, [False] * 2, rules_with(max_turnover="0.5"))
    assert sized == [Decimal(-100), Decimal(0)]
