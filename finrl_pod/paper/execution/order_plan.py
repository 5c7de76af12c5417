"""Turns a decision into order intents, sized by the same rule as a backtest with execution="paper"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from finrl_pod.market.orders import (
    WHOLE,
    PositionTarget,
    SizingRules,
    distance_to_target,
    limit_price,
    limited_weights,
    missing_shares,
    orders_within_limits,
    target_positions,
)
from finrl_pod.paper.domain.intents import Intent
from finrl_pod.paper.domain.records import Asset, OrderType, Side, TimeInForce
from finrl_pod.paper.domain.schedule import TradingCycle
from finrl_pod.paper.execution.decision import Decision, Holdings
from finrl_pod.paper.settings import PaperConfig

ZERO = Decimal(0)
MIN_COLLAR = Decimal("0.002")  # of purchases whose limit prices are lowered to fit the buying power
TICK = Decimal("0.01")  # that limit prices are rounded to


def limits_note(decision: Decision, rules: SizingRules) -> str:
    """Return what the limits cut from the weights of a decision, empty if nothing. Does not depend on the weights."""
    if decision.weights is None or rules.limits is None:
        return ""
    weights = [float(weight) for weight in decision.weights]
    if np.allclose(limited_weights(weights, rules), weights, rtol=0, atol=1e-9):
        return ""
    return (
        f"target weights are cut to risk.max_position = {float(rules.limits.max_position):g} (the rest is "
        f"spread over the other positions) and to a sum of {float(rules.limits.max_gross):g}"
    )


@dataclass(frozen=True)
class OrderPlan:
    """intents: sales first, then by value. skip_reasons: why a symbol cannot be traded now.

    targets: [N] positions aimed at, None for symbols without one. distance: value still to trade as a share of equity.
    """

    intents: list[Intent]
    skip_reasons: dict[str, str]
    targets: list[PositionTarget | None]
    distance: Decimal


def plan_orders(
    config: PaperConfig, decision: Decision, cycle: TradingCycle, holdings: Holdings, assets: Mapping[str, Asset],
    rules: SizingRules, previous_targets: Sequence[PositionTarget | None] | None = None,
    buying_power: Decimal | None = None,
) -> OrderPlan:  # fmt: skip
    """Plan the orders of a decision, or for one that keeps the positions those that its kept targets still need.

    A symbol with invalid prices, or that is not tradable, keeps its position, valued at its last known close.
    Fractional quantities become DAY orders, since brokers accept no fractions in auctions: purchases may then wait for
    the sales that pay for them.

    buying_power: amount that brokers reserve the limit prices of purchases from; None without a bound.
    """
    symbols = decision.prices.panel.symbols
    skip_reasons = _untradable(decision, assets, rules)
    # A symbol without any close cannot have been bought: it is excluded, and its price does not matter.
    prices = [holdings.prices.get(symbol, WHOLE) for symbol in symbols]
    shares_held = [holdings.shares.get(symbol, ZERO) if symbol in holdings.prices else ZERO for symbol in symbols]
    is_fixed = [symbol in skip_reasons for symbol in symbols]
    if decision.weights is not None:
        weights = [float(w) for w in decision.weights]
        targets = target_positions(weights, holdings.cash, shares_held, prices, is_fixed, rules)
    elif previous_targets is not None:
        targets = list(previous_targets)
    else:
        return OrderPlan([], {}, [None] * len(symbols), ZERO)
    missing_quantities = missing_shares(targets, holdings.cash, shares_held, prices, rules)
    equity = holdings.cash + sum((s * p for s, p in zip(shares_held, prices, strict=True)), ZERO)
    quantities = orders_within_limits(missing_quantities, holdings.cash, shares_held, prices, is_fixed, rules)
    collar = purchase_collar(quantities, prices, rules, buying_power)
    intents = []
    for symbol, quantity, price in zip(symbols, quantities, prices, strict=True):
        if quantity % 1 and not assets[symbol].fractionable:
            shares = abs(quantity).normalize()
            skip_reasons[symbol] = f"{shares} shares are held, but the broker does not trade fractions of it"
        elif quantity:
            symbol_collar = collar if quantity > 0 else rules.collar
            intents.append(_intent(config, cycle, symbol, quantity, price, rules, symbol_collar))
    intents.sort(key=lambda i: (i.side is Side.BUY, -i.quantity * i.reference_price, i.symbol))
    if decision.weights is None:  # later sessions only report what concerns the targets
        missing_symbols = {s for s, missing in zip(symbols, missing_quantities, strict=True) if missing}
        skip_reasons = {symbol: reason for symbol, reason in skip_reasons.items() if symbol in missing_symbols}
    return OrderPlan(intents, skip_reasons, targets, distance_to_target(missing_quantities, equity, prices))


def purchase_collar(
    quantities: Sequence[Decimal], prices: Sequence[Decimal], rules: SizingRules, buying_power: Decimal | None
) -> Decimal:
    """Return the collar of purchases: narrower than the rules' where their limit prices exceed the buying power.

    A cash account that invests all of its cash has nothing left to reserve for limits above the market. The collar is
    not narrowed below MIN_COLLAR; purchases that still exceed the buying power are cut when they are sent.
    """
    value = sum((q * p for q, p in zip(quantities, prices, strict=True) if q > 0), ZERO)
    if buying_power is None or not value or not rules.collar:
        return rules.collar
    rounding = TICK * sum((q for q in quantities if q > 0), ZERO)
    return min(rules.collar, max((buying_power - rounding) / value - 1, MIN_COLLAR))


def _untradable(decision: Decision, assets: Mapping[str, Asset], rules: SizingRules) -> dict[str, str]:
    """Symbols that cannot be traded now, with the reason."""
    skip_reasons = dict(decision.prices.problems)
    for symbol in decision.prices.panel.symbols:
        asset = assets.get(symbol)
        if asset is None or not asset.tradable:
            skip_reasons.setdefault(symbol, "not tradable at the broker now")
        elif rules.fractional and not asset.fractionable:
            skip_reasons.setdefault(symbol, "the broker does not trade fractions of it")
    return skip_reasons


def _intent(
    config: PaperConfig, cycle: TradingCycle, symbol: str, quantity: Decimal, price: Decimal, rules: SizingRules,
    collar: Decimal,
) -> Intent:  # fmt: skip
    waits = config.orders.funding == "after_sales" and quantity > 0
    in_auction = TimeInForce.OPG if config.schedule.mode == "open" else TimeInForce.CLS
    # none of these may join an auction
    is_day_order = waits or rules.fractional or quantity % 1 != 0 or cycle.time is not None
    is_valid_all_day = is_day_order and cycle.time is None and not config.broker.continuous
    return Intent(
        run=config.name,
        bar=cycle.id,
        symbol=symbol,
        side=Side.BUY if quantity > 0 else Side.SELL,
        quantity=abs(quantity),
        time_in_force=TimeInForce.GTC if config.broker.continuous else TimeInForce.DAY if is_day_order else in_auction,
        type=OrderType.LIMIT if rules.collar else OrderType.MARKET,
        limit_price=limit_price(price, quantity, collar) if rules.collar else None,
        reference_price=price,
        opens=cycle.opens,
        deadline=cycle.late_deadline if waits or is_valid_all_day else cycle.deadline,
        ends=cycle.session.close if is_valid_all_day else cycle.ends,
    )
