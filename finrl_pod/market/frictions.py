"""Execution with non-proportional costs and volume limits, the general case of `execute`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from finrl_pod.market.costs import BarLiquidity, CostModel, Frictions, HalfSpread, PerShare
from finrl_pod.market.execution import ExecutionRules, Fills, account_equity, split_purchases
from finrl_pod.native.device import on_device
from finrl_pod.types import Tensor

NEWTON_STEPS = 6  # converges to rounding error from a start within a few percent
MIN_BUY_FRACTION = 1e-9  # of the requested buys: "as little as possible", where a minimum fee makes a step
DUST = 1e-6  # of equity: with a minimum fee, smaller trades (rounding of targets) are dropped

Total = Callable[[Tensor], Tensor]


def execute_with_frictions(
    cash: Tensor,
    shares: Tensor,
    trades: Tensor,
    prices: Tensor,
    rules: ExecutionRules,
    frictions: Frictions,
    liquidity: BarLiquidity,
) -> Fills:
    """Fill trades under all models of `frictions`; shapes and guarantees as in `execute`.

    Trades are first limited to the bar's volume. Sells come before buys, and no sale costs more than its proceeds.
    Purchases that cover shorts always fill. Buys beyond the cash, costs included, are scaled by one factor; if the
    cash is below the minimum fees of all buys, none fills.
    """
    charge = all_cost_models(rules.cost_rate, frictions.costs)
    trades = limit_to_volume(trades, frictions, liquidity)
    if any(isinstance(model, PerShare) and model.minimum > 0 for model in frictions.costs):
        least = DUST * account_equity(cash, shares, prices).abs().unsqueeze(-1)
        dust = (trades.abs() * prices < least) & (trades != -shares)  # closing a position is not rounding
        trades = torch.where(dust, torch.zeros_like(trades), trades)
    if rules.whole_shares:
        trades = torch.trunc(trades)
    sell = (-trades).clamp(min=0)
    if not rules.short:
        sell = torch.minimum(sell, shares)
    brought = sell * prices
    sale_costs = torch.minimum(_summed(charge, sell, prices, liquidity), brought)
    held = shares - sell
    funds = cash + (brought - sale_costs).sum(-1)
    floor = (
        -rules.borrow * account_equity(funds, held, prices).clamp(min=0) if rules.borrow else torch.zeros_like(funds)
    )
    cover, requested = split_purchases(trades, held, rules)
    scale = _affordable(funds - floor, cover, requested, prices, charge, liquidity)
    buy = requested * scale.unsqueeze(-1)
    if rules.whole_shares:
        buy = torch.floor(buy)
    paid = funds
    if cover is not None:
        buy = buy + cover
        paid = funds - (cover * prices + _summed(charge, cover, prices, liquidity)).sum(-1)
    spent, buy_costs = buy * prices, _summed(charge, buy, prices, liquidity)
    left = funds - (spent + buy_costs).sum(-1)
    # Rounding can leave scaled-down purchases a few ulps below the floor.
    left = torch.maximum(left, torch.minimum(floor, paid))
    return Fills(left, held + buy, (sale_costs + buy_costs).sum(-1), (brought + spent).sum(-1))


def limit_to_volume(trades: Tensor, frictions: Frictions, liquidity: BarLiquidity) -> Tensor:
    """Limit trades [..., N] to the participation rate times the bar's volume."""
    if frictions.participation == 0 or liquidity.volume is None:
        return trades
    most = frictions.participation * liquidity.volume
    return torch.minimum(torch.maximum(trades, -most), most)


def all_cost_models(cost_rate: float, costs: Sequence[CostModel]) -> tuple[CostModel, ...]:
    """All cost models: the proportional rate, named "commission", then `costs`."""
    return (HalfSpread(cost_rate, name="commission"), *costs)


def costs_by_model(
    change: Tensor, prices: Tensor, models: Sequence[CostModel], liquidity: BarLiquidity
) -> dict[str, Tensor]:
    """Attribute the costs of fills of `change` shares [..., N]: currency [...] by model name.

    If a sale's costs were capped at its proceeds, every model's part is reduced in proportion.
    """
    amount = change.abs()
    parts = [model.cost(amount, prices, liquidity) for model in models]
    total = torch.stack(parts).sum(0)
    charged = torch.where(change < 0, torch.minimum(total, amount * prices), total)
    cut = torch.where(total > 0, charged / total.clamp(min=torch.finfo(total.dtype).tiny), torch.ones_like(total))
    named: dict[str, Tensor] = {}
    for model, part in zip(models, parts, strict=True):
        paid = (part * cut).sum(-1)
        named[model.name] = named[model.name] + paid if model.name in named else paid
    return named


def costs_by_asset(change: Tensor, prices: Tensor, models: Sequence[CostModel], liquidity: BarLiquidity) -> Tensor:
    """Costs of fills of `change` shares [..., N] in currency [..., N]; a sale costs at most its proceeds."""
    amount = change.abs()
    total = _summed(models, amount, prices, liquidity)
    return torch.where(change < 0, torch.minimum(total, amount * prices), total)


def _summed(models: Sequence[CostModel], amount: Tensor, prices: Tensor, liquidity: BarLiquidity) -> Tensor:
    total = models[0].cost(amount, prices, liquidity)
    for model in models[1:]:
        total = total + model.cost(amount, prices, liquidity)
    return total


def _affordable(
    funds: Tensor,
    cover: Tensor | None,
    requested: Tensor,
    prices: Tensor,
    models: Sequence[CostModel],
    liquidity: BarLiquidity,
) -> Tensor:
    """Largest factor [...] in [0, 1] such that it times `requested`, plus `cover` and costs, is at most `funds`.

    The bill is convex and increasing in the factor. Newton steps from 1 stay to the right of the root; the chord from
    there to the smallest purchase lies above the bill, so the factor on the chord is affordable. The gradient is that
    of the equation "bill = funds" (implicit function theorem).
    """
    funds = funds.clamp(min=0)

    def amounts(factor: Tensor) -> Tensor:
        part = requested * factor.unsqueeze(-1)
        return part if cover is None else part + cover

    def bill(factor: Tensor) -> Tensor:
        amount = amounts(factor)
        return (amount * prices + _summed(models, amount, prices, liquidity)).sum(-1)

    def steepness(factor: Tensor) -> Tensor:
        amount = amounts(factor)
        slopes = prices.expand_as(requested)
        for model in models:
            slopes = slopes + model.slope(amount, prices, liquidity)
        return (slopes * requested).sum(-1)

    one = torch.ones_like(funds)
    with torch.no_grad():
        smallest = one * MIN_BUY_FRACTION
        whole, least = bill(one), bill(smallest)
        enough = whole <= funds
        if not on_device(funds.device) and bool(enough.all()):  # a GPU would have to be waited for
            return one
        tiny = torch.finfo(requested.dtype).tiny
        factor, price = one, whole
        for _ in range(NEWTON_STEPS):
            step = (price - funds).clamp(min=0) / steepness(factor).clamp(min=tiny)
            factor = torch.maximum(factor - step, smallest)
            price = bill(factor)
        chord = smallest + (factor - smallest) * ((funds - least) / (price - least).clamp(min=tiny)).clamp(0, 1)
        scale = torch.where(funds > least, torch.minimum(chord, factor), torch.zeros_like(one))
        scale = torch.where(enough, one, scale)
        moves = ~enough & (funds > least)
        steep = steepness(factor).clamp(min=tiny)
    if not torch.is_grad_enabled():
        return scale
    slack = (funds - bill(factor)) / steep
    return scale + torch.where(moves, slack - slack.detach(), torch.zeros_like(one))
