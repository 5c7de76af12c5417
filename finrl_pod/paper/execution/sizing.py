"""Order sizing rules of a paper config; the daemon, its reports and backtests share.

Apart from the planning of orders, so that status reports need no numerical libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from finrl_pod.market.orders import OrderLimits, SizingRules, distance_to_target, missing_shares
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.decision_state import open_target, was_flattened
from finrl_pod.paper.journal.ledger import Ledger, market_value
from finrl_pod.paper.settings import PaperConfig, RiskSettings, allocations

ZERO = Decimal(0)


def sizing_rules(config: PaperConfig, limits: RiskSettings | None = None) -> SizingRules:
    """Return the sizing rules of a config, as exact decimals. limits: result of `risk_limits`; None to cut nothing."""
    orders = config.orders
    return SizingRules(
        cash_buffer=Decimal(str(orders.cash_buffer)),
        fractional=orders.fractional,
        min_value=Decimal(str(orders.min_value)),
        cost_rate=Decimal(str(config.broker.cost_bps)) / 10_000,
        collar=Decimal(str(orders.collar)),
        limits=None if limits is None else order_limits(limits),
        target_sessions=orders.target_sessions,
    )


def order_limits(limits: RiskSettings) -> OrderLimits:
    """Return the limits that weights and purchases are cut to."""
    return OrderLimits(
        max_position=Decimal(str(limits.max_position)),
        max_gross=Decimal(str(min(limits.max_gross, limits.max_net))),
        max_order=Decimal(str(limits.max_order)),
        max_turnover=Decimal(str(limits.max_turnover)),
    )


@dataclass(frozen=True)
class TargetStatus:
    """The newest target of a run. distance: value that own shares miss now, as a share of the equity of the run."""

    bar: str
    until: str
    state: str
    distance: float


def current_targets(ledger: Ledger, config: PaperConfig) -> dict[str, TargetStatus]:
    """Return the newest target of each run, with its distance at the last known closes."""
    targets = {}
    for allocation in allocations(config):
        row = ledger.store.last(schema.targets, schema.targets.c.run == allocation.name)
        if row is not None:
            distance, _ = _distance_now(ledger, config, allocation, ledger.closes.prices)
            targets[allocation.name] = TargetStatus(row.bar, row.until, row.state, float(distance))
    return targets


def account_distance(ledger: Ledger, config: PaperConfig, prices: Mapping[str, Decimal] | None = None) -> float:
    """The value that all strategies miss to their open targets now, as a share of the account equity."""
    current_prices = prices or ledger.closes.prices
    distances = [_distance_now(ledger, config, allocation, current_prices) for allocation in allocations(config)]
    equity = Decimal(str(config.capital)) + ledger.cash + market_value(ledger.positions, current_prices)
    missing = sum((distance * part_equity for distance, part_equity in distances), ZERO)
    return float(missing / equity) if equity > 0 else 0.0


def _distance_now(
    ledger: Ledger, config: PaperConfig, allocation: PaperConfig, prices: Mapping[str, Decimal]
) -> tuple[Decimal, Decimal]:
    """Distance of the shares of a strategy (from `allocations`) to its open target, 0 without one, and its equity."""
    book = ledger.books[allocation.name] if config.strategies else ledger
    cash = Decimal(str(allocation.capital)) + book.cash
    positions = {symbol: shares for symbol, shares in book.positions.items() if shares}
    equity = cash + market_value(positions, prices)
    target_row = open_target(ledger.store, allocation.name)
    if target_row is None or was_flattened(ledger.store, allocation.name):
        return ZERO, equity
    symbols = [symbol for symbol in {**positions, **target_row[0].positions} if symbol in prices]
    shares = [positions.get(symbol, ZERO) for symbol in symbols]
    symbol_prices = [prices[symbol] for symbol in symbols]
    missing = missing_shares(target_row[0].by_symbol(symbols), cash, shares, symbol_prices, sizing_rules(allocation))
    return distance_to_target(missing, equity, symbol_prices), equity
