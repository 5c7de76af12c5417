"""Order execution: how trades change cash and shares.

Pure functions, batched over any leading dimensions, in the dtype of the inputs: environments use float32, backtests
float64. Differentiable with fractional shares and proportional buys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from finrl_pod.market.costs import Frictions
from finrl_pod.types import Floats, MarketTensor, Tensor

BuyAllocation = Literal["proportional", "sequential"]
SHARE_TOLERANCE = 1e-9  # rounding error of trades that were weights in float64, as a share of the holdings
WEIGHT_TOLERANCE = 1e-5  # weights computed in float32 add up to 1 only this closely


@dataclass(frozen=True)
class ExecutionRules:
    """Rules by which orders fill.

    cost_rate: cost of a trade as a fraction of its value, per side (10 basis points = 0.001).
    whole_shares: truncate fills to whole shares. short: allow negative positions.
    buy_allocation: "proportional" scales all buys by one factor when cash is short; "sequential" fills buys by
    descending priority, ties by asset index, each as far as the cash goes (as FinRL does).
    leverage: limit on gross exposure as a multiple of equity; above 1 cash may fall to -borrow * equity.
    tax_short, tax_long: tax rates on gains. They change nothing but the return after tax.
    frictions: further costs and limits, applied by `finrl_pod.market.venue` and ignored by `execute`.
    """

    cost_rate: float = 0.001
    whole_shares: bool = False
    short: bool = False
    buy_allocation: BuyAllocation = "proportional"
    leverage: float = 1.0
    tax_short: float = 0.0
    tax_long: float = 0.0
    frictions: Frictions | None = None

    @property
    def borrow(self) -> float:
        """Maximum loan as a multiple of equity."""
        return max(self.leverage - 1.0, 0.0)

    @property
    def limited(self) -> bool:
        """Whether the gross-exposure limit must be enforced; otherwise limited cash already does."""
        return self.short or self.leverage < 1


@dataclass(frozen=True, eq=False)
class MarketPeriod:
    """A period of a market in which an account trades under rules.

    first, last: bars of the period, inclusive. cash: currency that the account starts with at the close of bar `first`.
    flows: currency paid in at the closes of the bars first..last, negative if taken out, or None.
    """

    market: MarketTensor
    first: int
    last: int
    rules: ExecutionRules
    cash: float
    flows: Floats | None = None

    @property
    def bars(self) -> slice:
        """The bars as a slice of rows of [T, ...]."""
        return slice(self.first, self.last + 1)


class Fills(NamedTuple):
    """Account after fills: cash [...], shares [..., N]; cost [...] and traded [...] (sum of |value|) in currency."""

    cash: Tensor
    shares: Tensor
    cost: Tensor
    traded: Tensor


def account_equity(cash: Tensor, shares: Tensor, prices: Tensor) -> Tensor:
    """Equity in currency [...]: cash [...] plus shares [..., N] at prices [..., N]."""
    return cash + (shares * prices).sum(-1)


def trades_to_weights(weights: Tensor, cash: Tensor, shares: Tensor, prices: Tensor) -> Tensor:
    """Trades in shares [..., N] that bring the holdings to `weights` [..., N] of equity at these prices [..., N]."""
    return weights * account_equity(cash, shares, prices).unsqueeze(-1) / prices - shares


def whole_trades(trades: Tensor, shares: Tensor) -> Tensor:
    """Trades [..., N] in float64 with those that are whole but for rounding made whole: they would lose a share.

    shares: [..., N], holdings.
    """
    nearest = trades.round()
    return torch.where(
        (trades - nearest).abs() <= SHARE_TOLERANCE * (1 + shares.abs() + nearest.abs()), nearest, trades
    )


def execute(
    cash: Tensor,
    shares: Tensor,
    trades: Tensor,
    prices: Tensor,
    rules: ExecutionRules,
    priority: Tensor | None = None,
    cost_rates: Tensor | None = None,
) -> Fills:
    """Fill trades at `prices`: sells first, then buys limited to the available cash, fees included.

    Purchases that cover shorts come before other buys and always fill, on credit if necessary.

    cash: [...]; shares, trades (signed), prices: [..., N]; priority: [..., N], the order of buys under
    buy_allocation="sequential": larger first, the trades (truncated under whole_shares) when None. cost_rates:
    [..., N], proportional cost of each asset, replaces the `cost_rate` of all; below 1. Prices must be
    positive and finite; a trade of an asset that cannot be traded must be zero. Without `borrow` and `short`, cash
    and shares never go negative.
    """
    if rules.whole_shares:
        trades = torch.trunc(trades)
    rate = rules.cost_rate if cost_rates is None else cost_rates
    sell = (-trades).clamp(min=0)
    if not rules.short:
        sell = torch.minimum(sell, shares)
    sale_value = sell * prices
    remaining_shares = shares - sell
    funds = cash + _scaled_sum(sale_value, 1 - rate)
    floor = cash_floor(funds, remaining_shares, prices, rules)
    cover, purchases = split_purchases(trades, remaining_shares, rules)
    cash_after_cover = funds if cover is None else funds - _scaled_sum(cover * prices, 1 + rate)
    if rules.buy_allocation == "sequential":
        buy = _sequential(
            cash_after_cover - floor, purchases, prices * (1 + rate), rules, trades if priority is None else priority
        )
    else:
        buy = _proportional(cash_after_cover - floor, purchases, _scaled_sum(purchases * prices, 1 + rate), rules)
    if cover is not None:
        buy = buy + cover
    purchase_value = buy * prices
    left = funds - _scaled_sum(purchase_value, 1 + rate)
    # Rounding can leave scaled-down purchases a few ulps below the floor.
    left = torch.maximum(left, torch.minimum(floor, cash_after_cover))
    traded = sale_value.sum(-1) + purchase_value.sum(-1)
    cost = traded * rate if cost_rates is None else _scaled_sum(sale_value + purchase_value, cost_rates)
    return Fills(left, remaining_shares + buy, cost, traded)


def _scaled_sum(values: Tensor, factor: float | Tensor) -> Tensor:
    """Sum over the assets of values [..., N] times a factor, one number or [..., N]."""
    return (values * factor).sum(-1) if isinstance(factor, Tensor) else values.sum(-1) * factor


def cash_floor(funds: Tensor, shares: Tensor, prices: Tensor, rules: ExecutionRules) -> Tensor:
    """Lowest cash [...] that purchases may leave: 0, or with leverage the largest loan as a negative number."""
    if not rules.borrow:
        return torch.zeros_like(funds)
    return -rules.borrow * account_equity(funds, shares, prices).clamp(min=0)


def split_purchases(trades: Tensor, remaining_shares: Tensor, rules: ExecutionRules) -> tuple[Tensor | None, Tensor]:
    """Split purchases [..., N] into those that cover shorts (None without shorts) and the rest.

    remaining_shares: after sales.
    """
    purchases = trades.clamp(min=0)
    if not rules.short:
        return None, purchases
    cover = torch.minimum(purchases, (-remaining_shares).clamp(min=0))
    if rules.whole_shares:
        cover = torch.floor(cover)
    return cover, purchases - cover


def _proportional(funds: Tensor, purchases: Tensor, need: Tensor, rules: ExecutionRules) -> Tensor:
    """Scale all buys by one factor so that what they need, fees included, is at most `funds`."""
    funds = funds.clamp(min=0)
    # Keep the quotient at most 1: for tiny needs it would overflow and its gradient become NaN.
    scale = funds / torch.maximum(need, funds).clamp(min=torch.finfo(need.dtype).tiny)
    buy = purchases * scale.unsqueeze(-1)
    return torch.floor(buy) if rules.whole_shares else buy


def _sequential(funds: Tensor, purchases: Tensor, units: Tensor, rules: ExecutionRules, priority: Tensor) -> Tensor:
    """Fill buys one asset after the other, highest priority first, each as far as the remaining funds go.

    units: [..., N], price of one share with fees.
    """
    order = torch.argsort(priority, dim=-1, descending=True, stable=True)
    ranked_purchases = purchases.gather(-1, order)
    units = units.expand_as(purchases).gather(-1, order)
    funds = funds.clamp(min=0)
    fills = []
    for i in range(order.shape[-1]):
        affordable = funds / units[..., i]
        fill = torch.minimum(torch.floor(affordable) if rules.whole_shares else affordable, ranked_purchases[..., i])
        funds = (funds - fill * units[..., i]).clamp(min=0)
        fills.append(fill)
    return torch.zeros_like(purchases).scatter(-1, order, torch.stack(fills, -1))


def limit_gross_exposure(trades: Tensor, cash: Tensor, shares: Tensor, prices: Tensor, leverage: float) -> Tensor:
    """Limit trades [..., N] so that gross exposure sum |shares * price| <= leverage * equity at these prices.

    Trades that reduce positions are unchanged; those that open or add are scaled by one factor. Accounts above the
    limit can only reduce.
    """
    closing = torch.where(shares > 0, trades.clamp(min=-shares, max=torch.zeros_like(shares)), 0.0) + torch.where(
        shares < 0, trades.clamp(min=torch.zeros_like(shares), max=-shares), 0.0
    )
    opening = trades - closing
    available = leverage * account_equity(cash, shares, prices) - ((shares + closing).abs() * prices).sum(-1)
    need = (opening.abs() * prices).sum(-1).clamp(min=torch.finfo(prices.dtype).tiny)
    return closing + opening * (available / need).clamp(0, 1).unsqueeze(-1)


def weights_error(
    weights: Tensor, symbols: Sequence[str], *, limit: float = 1.0, short: bool = False, max_weight: float = math.inf
) -> str | None:
    """Describe what is wrong with target weights, or None when they are valid.

    weights: [..., N] fractions of equity, float. Valid weights are finite, their absolute values add up to at most
    `limit`, none is above `max_weight`, and without `short` none is negative; all bounds allow `WEIGHT_TOLERANCE`.
    A mandate bounds desired weights: targets may drift above its `max_weight` with prices.
    """
    gross = float(weights.abs().sum(-1).max())  # NaN propagates through max: one comparison finds NaN and excess alike
    lowest = 0.0 if short else float(weights.min())
    largest = -math.inf if math.isinf(max_weight) else float(weights.max())
    if gross <= limit + WEIGHT_TOLERANCE and lowest >= -WEIGHT_TOLERANCE and largest <= max_weight + WEIGHT_TOLERANCE:
        return None
    is_invalid = ~torch.isfinite(weights)
    if bool(is_invalid.any()):
        asset = int(is_invalid.nonzero()[0, -1])
        return f"must be finite, got {float(weights[is_invalid][0])} for {symbols[asset]}"
    if gross > limit + WEIGHT_TOLERANCE:
        return f"may add up to {limit:g} at most (absolute values), got {gross:.6g}; scale them down"
    if largest > max_weight + WEIGHT_TOLERANCE:
        asset = int(weights.reshape(-1, weights.shape[-1]).max(0).values.argmax())
        return f"must be at most {max_weight:g} (mandate.max_weight), got {largest:.6g} for {symbols[asset]}"
    asset = int(weights.reshape(-1, weights.shape[-1]).min(0).values.argmin())
    return f"must not be negative without short selling, got {lowest:.6g} for {symbols[asset]}"
