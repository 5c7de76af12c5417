"""Stops, take-profits and limit orders in backtests, filled within bars of open, high, low and close.

The order of prices within a bar is unknown, so every choice is the worse one for the account:

- A stop fills at its level, or at the open if the bar opens below it. If a bar reaches both a stop and a take-profit,
  the stop fills.
- A take-profit fills at its level, also if the bar opens above it.
- A trailing stop follows the highest price of the bars before, and the entry price.
- A limit order to buy fills if the bar's low is below the limit, at the limit, also if the bar opens lower; otherwise
  it lapses at the end of the bar.

Holdings are long. What was bought at a bar's open is protected from that bar on.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from finrl_pod.errors import InputError
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.types import Floats, MarketTensor, Panel, Tensor


@dataclass(frozen=True)
class OrderRules:
    """Orders beside a strategy's target weights; 0 is off.

    stop_loss, take_profit: sell a holding that falls (rises) by this share of its average entry price. trailing_stop:
    sell one that falls by this share from its highest price since entry. entry_limit: buy only at this share below the
    close that was decided on.
    """

    stop_loss: float = 0.0
    take_profit: float = 0.0
    trailing_stop: float = 0.0
    entry_limit: float = 0.0

    def __post_init__(self) -> None:
        for name in ("stop_loss", "trailing_stop", "entry_limit"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(
                    f"orders: {name} must be at least 0 and below 1, such as 0.05, got {getattr(self, name)}"
                )
        if not 0 <= self.take_profit < np.inf:
            raise InputError(f"orders: take_profit must be at least 0, such as 0.1, got {self.take_profit}")

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))

    def sentences(self) -> list[str]:
        """For reports."""
        found = []
        if self.stop_loss:
            found.append(f"Stop: a holding is sold {self.stop_loss:g} of its entry price below it.")
        if self.take_profit:
            found.append(f"Take-profit: a holding is sold {self.take_profit:g} of its entry price above it.")
        if self.trailing_stop:
            found.append(f"Trailing stop: a holding is sold {self.trailing_stop:g} of its highest price below it.")
        if self.entry_limit:
            found.append(
                f"Limit orders: buys fill {self.entry_limit:g} below the decision's close, or lapse after a bar."
            )
        return [*found, "Within a bar, the worse order of prices is assumed."] if found else []


def orders_of(strategy: Any) -> OrderRules | None:
    """A strategy's attribute `orders`, None without orders. Raises InputError for anything but OrderRules."""
    orders = getattr(strategy, "orders", None)
    if orders is None or (isinstance(orders, OrderRules) and not orders):
        return None
    if not isinstance(orders, OrderRules):
        raise InputError(f"orders of strategy {strategy.name} must be an OrderRules, got {type(orders).__name__}")
    return orders


class IntrabarOrders:
    """The orders of one backtest of B accounts: average entry prices and highest prices of their holdings."""

    def __init__(self, orders: OrderRules, panel: Panel, market: MarketTensor, rules: ExecutionRules) -> None:
        """Raises InputError for prices without open, high and low, fills at the same close, and shorts."""
        if panel.open is None or panel.high is None or panel.low is None:
            raise InputError(f"stops and limits need open, high and low, and {panel.name!r} lacks one; import them")
        if market.fill_rule != "next":
            raise InputError('stops and limits need fills at the next bar\'s open; set environment.fill = "next"')
        if rules.short:
            raise InputError("stops and limits are for long holdings; set environment.short = false")
        self._orders = orders
        self._open, self._high, self._low = (_tensor(x, market) for x in (panel.open, panel.high, panel.low))
        self._entry = torch.zeros(1)
        self._peak = torch.zeros(1)

    def limited(self, t: int, trades: Tensor, prices: Tensor, close: Tensor) -> tuple[Tensor, Tensor]:
        """Trades [B, N] decided at bar t, and their fill prices [B, N], with buys as limit orders of the next bar."""
        if not self._orders.entry_limit:
            return trades, prices
        limit = close * (1 - self._orders.entry_limit)
        bought = trades > 0
        reached = self._low[t + 1] < limit
        return torch.where(bought & ~reached, 0.0, trades), torch.where(bought & reached, limit, prices)

    def filled(self, before: Tensor, after: Tensor, prices: Tensor) -> None:
        """Follow fills that changed holdings [B, N] at prices [B, N] or [N]."""
        if self._entry.shape != after.shape:
            self._entry, self._peak = torch.zeros_like(after), torch.zeros_like(after)
        bought = (after - before).clamp(min=0)
        kept = after - bought
        held = after > 0
        entry = (self._entry * kept + prices * bought) / after.clamp(min=torch.finfo(after.dtype).tiny)
        self._entry = torch.where(held, entry, 0.0)
        opened = held & (before <= 0)
        peak = torch.where(opened, prices.expand_as(after), self._peak)
        self._peak = torch.where(held, peak, 0.0)

    def exits(self, t: int, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Shares [B, N] sold within the bar after t, and their prices [B, N]; entries of what is sold are forgotten."""
        orders, none = self._orders, torch.full_like(shares, -torch.inf)
        opening, high, low = self._open[t + 1], self._high[t + 1], self._low[t + 1]
        held = (shares > 0) & torch.isfinite(low)
        stop = self._entry * (1 - orders.stop_loss) if orders.stop_loss else none
        if orders.trailing_stop:
            stop = torch.maximum(stop, self._peak * (1 - orders.trailing_stop))
        stopped = held & (low <= stop)
        target = self._entry * (1 + orders.take_profit) if orders.take_profit else -none
        taken = held & ~stopped & (high >= target)
        unused = torch.where(torch.isfinite(opening), opening, 1.0)  # of assets that do not trade
        price = torch.where(stopped, torch.minimum(opening, stop), torch.where(taken, target, unused))
        self._peak = torch.where(held, torch.maximum(self._peak, high), self._peak)
        sold = stopped | taken
        self._entry, self._peak = (torch.where(sold, 0.0, x) for x in (self._entry, self._peak))
        return torch.where(sold, shares, 0.0), price


def _tensor(values: Floats, market: MarketTensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(market.close.device)
