"""Stops, take-profits and limit orders in backtests, filled within bars of open, high, low and close.

The order of prices within a bar is unknown, so every choice is the worse one for the account: a stop fills before a
take-profit, at its level or at a lower open; a take-profit and a limit to buy fill at their level, even if a bar opens
beyond it; a trailing stop follows the bars before. Holdings are long, and protected from the bar of their purchase on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from finrl_pod.errors import InputError
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.types import MarketTensor, Panel, Tensor


@dataclass(frozen=True)
class OrderRules:
    """Orders in addition to target weights; 0 is off.

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

    @classmethod
    def from_shares(cls, shares: Mapping[str, float], source: str = "orders") -> OrderRules:
        """The rules with these shares by name. source: argument or option, for messages.

        Raises InputError for an unknown name and for a share that is not a number or out of range.
        """
        names = [field.name for field in fields(cls)]
        is_share = [isinstance(share, int | float) and not isinstance(share, bool) for share in shares.values()]
        if not (shares.keys() <= set(names) and all(is_share)):
            raise InputError(f"{source} takes shares such as stop_loss=0.1, of {', '.join(names)}; got {shares!r:.80}")
        return cls(**shares)

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))

    def sentences(self) -> list[str]:
        """For reports."""
        texts = {
            "stop_loss": "Stop: a holding is sold {:g} of its entry price below it.",
            "take_profit": "Take-profit: a holding is sold {:g} of its entry price above it.",
            "trailing_stop": "Trailing stop: a holding is sold {:g} of its highest price below it.",
            "entry_limit": "Limit orders: buys fill {:g} below the close of the decision, or lapse after a bar.",
        }
        lines = [text.format(share) for name, text in texts.items() if (share := getattr(self, name)) > 0]
        return [*lines, "Within a bar, the worse order of prices is assumed."] if lines else []


def orders_of(strategy: Any) -> OrderRules | None:
    """Attribute `orders` of a strategy, None without orders. Raises InputError for anything but OrderRules."""
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
        self._open, self._high, self._low = (
            torch.from_numpy(np.ascontiguousarray(prices)).to(market.close.device)
            for prices in (panel.open, panel.high, panel.low)
        )
        self._entry = torch.zeros(1)
        self._peak = torch.zeros(1)

    def limited(self, t: int, trades: Tensor, prices: Tensor, close: Tensor) -> tuple[Tensor, Tensor]:
        """Trades [B, N] decided at bar t, and their fill prices [B, N], with buys as limit orders of the next bar."""
        if not self._orders.entry_limit:
            return trades, prices
        limit = close * (1 - self._orders.entry_limit)
        is_buy = trades > 0
        is_reached = self._low[t + 1] < limit
        return torch.where(is_buy & ~is_reached, 0.0, trades), torch.where(is_buy & is_reached, limit, prices)

    def filled(self, shares_before: Tensor, shares_after: Tensor, prices: Tensor) -> None:
        """Follow fills that changed holdings [B, N] at prices [B, N] or [N]."""
        if self._entry.shape != shares_after.shape:
            self._entry = torch.zeros_like(shares_after)
            self._peak = torch.zeros_like(shares_after)
        bought_shares = (shares_after - shares_before).clamp(min=0)
        kept_shares = shares_after - bought_shares
        is_held = shares_after > 0
        entry = (self._entry * kept_shares + prices * bought_shares) / shares_after.clamp(
            min=torch.finfo(shares_after.dtype).tiny
        )
        self._entry = torch.where(is_held, entry, 0.0)
        is_opened = is_held & (shares_before <= 0)
        peak = torch.where(is_opened, prices.expand_as(shares_after), self._peak)
        self._peak = torch.where(is_held, peak, 0.0)

    def exits(self, t: int, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Shares [B, N] sold within the bar after t, and their prices [B, N]; entries of what is sold are forgotten."""
        orders = self._orders
        no_stop = torch.full_like(shares, -torch.inf)
        opening = self._open[t + 1]
        high = self._high[t + 1]
        low = self._low[t + 1]
        is_held = (shares > 0) & torch.isfinite(low)
        stop = self._entry * (1 - orders.stop_loss) if orders.stop_loss else no_stop
        if orders.trailing_stop:
            stop = torch.maximum(stop, self._peak * (1 - orders.trailing_stop))
        is_stopped = is_held & (low <= stop)
        target = self._entry * (1 + orders.take_profit) if orders.take_profit else -no_stop
        is_taken = is_held & ~is_stopped & (high >= target)
        fallback_price = torch.where(torch.isfinite(opening), opening, 1.0)  # of assets that do not trade
        price = torch.where(is_stopped, torch.minimum(opening, stop), torch.where(is_taken, target, fallback_price))
        self._peak = torch.where(is_held, torch.maximum(self._peak, high), self._peak)
        is_sold = is_stopped | is_taken
        self._entry, self._peak = (torch.where(is_sold, 0.0, x) for x in (self._entry, self._peak))
        return torch.where(is_sold, shares, 0.0), price
