"""Distance of own shares to the open targets, as a share of equity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from finrl_pod.market.orders import distance_to_target, missing_shares
from finrl_pod.paper.execution.sizing import sizing_rules
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.ledger import Ledger
from finrl_pod.paper.journal.targets import open_target, was_flattened
from finrl_pod.paper.settings import PaperConfig, allocations

ZERO = Decimal(0)


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
    for part in allocations(config):
        row = ledger.store.last(schema.targets, schema.targets.c.run == part.name)
        if row is not None:
            distance, _ = _distance_now(ledger, config, part, ledger.closes.prices)
            targets[part.name] = TargetStatus(row.bar, row.until, row.state, float(distance))
    return targets


def account_distance(ledger: Ledger, config: PaperConfig, prices: Mapping[str, Decimal] | None = None) -> float:
    """The value that all strategies miss to their open targets now, as a share of the account's equity."""
    at = prices or ledger.closes.prices
    parts = [_distance_now(ledger, config, part, at) for part in allocations(config)]
    equity = Decimal(str(config.capital)) + ledger.cash + _value(ledger.positions, at)
    missing = sum((distance * part_equity for distance, part_equity in parts), ZERO)
    return float(missing / equity) if equity > 0 else 0.0


def _distance_now(
    ledger: Ledger, config: PaperConfig, part: PaperConfig, prices: Mapping[str, Decimal]
) -> tuple[Decimal, Decimal]:
    """Distance of a strategy's shares to its open target, 0 without one, and its equity.

    part: the strategy's of `allocations`.
    """
    book = ledger.books[part.name] if config.strategies else ledger
    cash = Decimal(str(part.capital)) + book.cash
    held = {symbol: shares for symbol, shares in book.positions.items() if shares}
    equity = cash + _value(held, prices)
    kept = open_target(ledger.store, part.name)
    if kept is None or was_flattened(ledger.store, part.name):
        return ZERO, equity
    symbols = [symbol for symbol in {**held, **kept[0].positions} if symbol in prices]
    shares, at = [held.get(symbol, ZERO) for symbol in symbols], [prices[symbol] for symbol in symbols]
    missing = missing_shares(kept[0].aligned(symbols), cash, shares, at, sizing_rules(part))
    return distance_to_target(missing, equity, at), equity


def _value(shares: Mapping[str, Decimal], prices: Mapping[str, Decimal]) -> Decimal:
    return sum((quantity * prices.get(symbol, ZERO) for symbol, quantity in shares.items() if quantity), ZERO)
