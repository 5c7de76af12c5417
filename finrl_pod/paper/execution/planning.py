"""From a decision to intents: sized by the same rule as in a backtest with execution="paper", sales first."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from finrl_pod.market.orders import WHOLE, SizingRules, limit_price, size_orders
from finrl_pod.paper.execution.decision import Decision, Holdings
from finrl_pod.paper.execution.intents import Intent
from finrl_pod.paper.records import Asset, OrderType, Side, TimeInForce
from finrl_pod.paper.runtime.schedule import Round
from finrl_pod.paper.settings import PaperConfig

ZERO = Decimal(0)


def sizing_rules(config: PaperConfig) -> SizingRules:
    """The config's numbers as they stand in its file."""
    orders = config.orders
    return SizingRules(
        cash_buffer=Decimal(str(orders.cash_buffer)),
        fractional=orders.fractional,
        min_value=Decimal(str(orders.min_value)),
        cost_rate=Decimal(str(config.broker.cost_bps)) / 10_000,
        collar=Decimal(str(orders.collar)),
    )


def plan(
    config: PaperConfig, decision: Decision, round_: Round, own: Holdings, assets: Mapping[str, Asset]
) -> tuple[list[Intent], dict[str, str]]:
    """Intents, sales first and then the larger ones, and the symbols that were left alone with the reason.

    What has faulty prices or may not be traded keeps its holding, at its last known close. A fraction of a share goes
    as a DAY order: brokers take none for an auction.
    """
    if decision.weights is None:
        return [], {}
    rules, symbols = sizing_rules(config), decision.prices.panel.symbols
    left = dict(decision.prices.problems)
    for symbol in symbols:
        asset = assets.get(symbol)
        if asset is None or not asset.tradable:
            left.setdefault(symbol, "the broker does not trade it now")
        elif rules.fractional and not asset.fractionable:
            left.setdefault(symbol, "the broker does not trade fractions of it")
    # A symbol that never had a close cannot have been bought here: it is fixed, and any price will do.
    prices = [own.prices.get(symbol, WHOLE) for symbol in symbols]
    held = [own.shares.get(symbol, ZERO) if symbol in own.prices else ZERO for symbol in symbols]
    fixed = [symbol in left for symbol in symbols]
    quantities = size_orders([float(w) for w in decision.weights], own.cash, held, prices, fixed, rules)
    intents = []
    for symbol, quantity, price in zip(symbols, quantities, prices, strict=True):
        if quantity % 1 and not assets[symbol].fractionable:
            left[symbol] = f"{abs(quantity).normalize()} of it are held, and the broker does not trade fractions of it"
        elif quantity:
            intents.append(_intent(config, round_, symbol, quantity, price, rules))
    return sorted(intents, key=lambda i: (i.side is Side.BUY, -i.quantity * i.reference_price, i.symbol)), left


def _intent(
    config: PaperConfig, round_: Round, symbol: str, quantity: Decimal, price: Decimal, rules: SizingRules
) -> Intent:
    waits = config.orders.funding == "after_sales" and quantity > 0
    in_auction = TimeInForce.OPG if config.schedule.mode == "open" else TimeInForce.CLS
    day = waits or rules.fractional or quantity % 1 != 0  # none of these can join an auction
    return Intent(
        run=config.name,
        bar=round_.bar.isoformat(),
        symbol=symbol,
        side=Side.BUY if quantity > 0 else Side.SELL,
        quantity=abs(quantity),
        time_in_force=TimeInForce.DAY if day else in_auction,
        type=OrderType.LIMIT if rules.collar else OrderType.MARKET,
        limit_price=limit_price(price, quantity, rules.collar) if rules.collar else None,
        reference_price=price,
        opens=round_.opens,
        deadline=round_.late_deadline if waits else round_.deadline,
        ends=round_.session.close if day else round_.ends,
    )
