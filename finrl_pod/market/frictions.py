"""Fills under costs that are not proportional, and under a limit on volume: the general case of `execute`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from finrl_pod.market.costs import BarLiquidity, CostModel, Frictions, HalfSpread, PerShare
from finrl_pod.market.execution import ExecutionRules, Fills, equity, split_purchases
from finrl_pod.types import Tensor

NEWTON_STEPS = 6  # quadratic convergence from a start within a few percent: the last steps are rounding
FIRST_SHARE = 1e-9  # of the wanted purchases: stands for "as little as possible" where a minimum fee makes a step
DUST = 1e-6  # of the equity: under a minimum fee, smaller changes (the rounding of targets) are not sent

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
    """Fill wanted share changes under every model of `frictions`; shapes and promises are those of `execute`.

    Orders are cut to the share of the bar's volume first. Sells come before buys; no sale costs more than it brings.
    Purchases that close shorts are always paid for.
    Buys that the cash cannot pay for, costs included, are scaled by one factor; where the cash is below the minimum
    fees of all wanted buys, none is made.
    """
    charge = all_cost_models(rules.cost_rate, frictions.costs)
    trades = limit_to_volume(trades, frictions, liquidity)
    if any(isinstance(model, PerShare) and model.minimum > 0 for model in frictions.costs):
        least = DUST * equity(cash, shares, prices).abs().unsqueeze(-1)
        dust = (trades.abs() * prices < least) & (trades != -shares)  # what closes a position is no rounding
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
    floor = -rules.borrow * equity(funds, held, prices).clamp(min=0) if rules.borrow else torch.zeros_like(funds)
    cover, want = split_purchases(trades, held, rules)
    scale = _affordable(funds - floor, cover, want, prices, charge, liquidity)
    buy = want * scale.unsqueeze(-1)
    if rules.whole_shares:
        buy = torch.floor(buy)
    paid = funds
    if cover is not None:
        buy = buy + cover
        paid = funds - (cover * prices + _summed(charge, cover, prices, liquidity)).sum(-1)
    spent, buy_costs = buy * prices, _summed(charge, buy, prices, liquidity)
    left = funds - (spent + buy_costs).sum(-1)
    # Rounding alone can leave a scaled-down purchase a few units in the last place short of the floor.
    left = torch.maximum(left, torch.minimum(floor, paid))
    return Fills(left, held + buy, (sale_costs + buy_costs).sum(-1), (brought + spent).sum(-1))


def limit_to_volume(trades: Tensor, frictions: Frictions, liquidity: BarLiquidity) -> Tensor:
    """Trades [..., N] cut to their share of the bar's volume."""
    if frictions.participation == 0 or liquidity.volume is None:
        return trades
    most = frictions.participation * liquidity.volume
    return torch.minimum(torch.maximum(trades, -most), most)


def all_cost_models(cost_rate: float, costs: Sequence[CostModel]) -> tuple[CostModel, ...]:
    """All cost models of a rule set: the proportional rate first, under the name "commission"."""
    return (HalfSpread(cost_rate, name="commission"), *costs)


def costs_by_model(
    change: Tensor, prices: Tensor, models: Sequence[CostModel], liquidity: BarLiquidity
) -> dict[str, Tensor]:
    """What each model charged for fills of `change` shares [..., N]: currency [...] by name.

    Where a sale's costs were cut to its proceeds, each model's part is cut in proportion.
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


def _summed(models: Sequence[CostModel], amount: Tensor, prices: Tensor, liquidity: BarLiquidity) -> Tensor:
    total = models[0].cost(amount, prices, liquidity)
    for model in models[1:]:
        total = total + model.cost(amount, prices, liquidity)
    return total


def _affordable(
    funds: Tensor,
    cover: Tensor | None,
    want: Tensor,
    prices: Tensor,
    models: Sequence[CostModel],
    liquidity: BarLiquidity,
) -> Tensor:
    """The largest factor [...] in [0, 1] for `want` whose bill, with `cover` and costs, is at most `funds`.

    The bill is convex and increasing in the factor. Newton's steps from 1 stay on its right; the chord from there to
    the smallest purchase lies above the bill, so that the factor read off the chord can be paid for. Its gradient is
    that of the equation "bill = funds" (implicit function theorem).
    """
    funds = funds.clamp(min=0)

    def amounts(factor: Tensor) -> Tensor:
        part = want * factor.unsqueeze(-1)
        return part if cover is None else part + cover

    def bill(factor: Tensor) -> Tensor:
        amount = amounts(factor)
        return (amount * prices + _summed(models, amount, prices, liquidity)).sum(-1)

    def steepness(factor: Tensor) -> Tensor:
        amount = amounts(factor)
        slopes = prices.expand_as(want)
        for model in models:
            slopes = slopes + model.slope(amount, prices, liquidity)
        return (slopes * want).sum(-1)

    one = torch.ones_like(funds)
    with torch.no_grad():
        smallest = one * FIRST_SHARE
        whole, least = bill(one), bill(smallest)
        enough = whole <= funds
        if bool(enough.all()):
            return one
        tiny = torch.finfo(want.dtype).tiny
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
