"""Conversion of policy actions to target weights, shared by environments and deployed strategies."""

from __future__ import annotations

from dataclasses import replace

import torch

from finrl_pod.market.execution import ExecutionRules, execute, limit_gross_exposure
from finrl_pod.market.mandate import TILT_SCALE
from finrl_pod.types import Tensor

TRADE_FRACTION = 0.25  # of equity that a discrete action buys or sells


def scores_to_weights(scores: Tensor, tradable: Tensor, *, short: bool, leverage: float) -> Tensor:
    """Convert scores [..., 1 + N] (cash first) to target weights [..., N] of equity; cash is the rest.

    Long-only: softmax over cash and the tradable assets, times leverage. With `short`: the asset scores, scaled down
    so that their absolute values add up to at most `leverage`. Untradable assets get weight 0.
    """
    assets = scores[..., 1:]
    if short:
        open_scores = torch.where(tradable, assets, 0.0)
        gross = open_scores.abs().sum(-1, keepdim=True)
        return open_scores * leverage / gross.clamp(min=leverage)
    asset_scores = torch.where(tradable, assets, -torch.inf)
    return torch.softmax(torch.cat([scores[..., :1], asset_scores], -1), -1)[..., 1:] * leverage


def trades_as_weights(
    actions: Tensor,
    weights: Tensor,
    tradable: Tensor,
    prices: Tensor,
    equity: Tensor,
    *,
    hmax: float,
    leverage: float,
    rules: ExecutionRules,
) -> Tensor:
    """Convert share trades, actions [..., N] in [-1, 1] times hmax, to the target weights [..., N] they result in.

    weights: [..., N] weights; tradable, prices: [..., N]; equity: [...] in currency. The limits of the environment
    apply at these prices: untradable positions stay, sales come first, and buys beyond the cash or the gross-exposure
    limit are reduced. An account above its limit is scaled down to it.
    """
    actions = actions.clamp(-1, 1)
    trades = torch.where(tradable, actions * hmax * prices / equity.unsqueeze(-1), 0.0)
    cash = 1 - weights.sum(-1)
    units = torch.ones_like(weights)  # for an account of equity 1, shares are weights
    if rules.limited:
        trades = limit_gross_exposure(trades, cash, weights, units, leverage)
    fractions = replace(rules, whole_shares=False)
    target = execute(cash, weights, trades, units, fractions, actions).shares
    gross = target.abs().sum(-1, keepdim=True)
    limit = 1.0 + rules.borrow
    return target * (limit / gross.clamp(min=limit))


def number_of_choices(assets: int) -> int:
    """Number of discrete actions: hold, buy one of N, sell one of N."""
    return 2 * assets + 1


def choice_directions(choice: Tensor, assets: int) -> Tensor:
    """Directions [..., N] (float64) of a discrete action [...]: 1 for the bought asset, -1 for the sold one, else 0.

    Choice 0 holds, 1 to N buy asset n, N + 1 to 2 N sell asset n.
    """
    buy_choices = torch.arange(1, assets + 1, device=choice.device)
    choices = choice.long().unsqueeze(-1)
    return (choices == buy_choices).double() - (choices == buy_choices + assets).double()


def choice_scores(choice: Tensor, assets: int) -> Tensor:
    """Scores [..., N] (float64) of a mandate for a discrete action [...]: one asset tilted up or down, or none."""
    return choice_directions(choice, assets) * TILT_SCALE


def choices_as_weights(choice: Tensor, weights: Tensor, tradable: Tensor, *, rules: ExecutionRules) -> Tensor:
    """Target weights [..., N] after a discrete action [...] at current prices.

    weights: [..., N] weights. Sales are limited to the holdings, buys to the cash, costs included.
    """
    change = torch.where(tradable, choice_directions(choice, weights.shape[-1]) * TRADE_FRACTION, 0.0)
    change = torch.maximum(change, -weights)
    fractions = replace(rules, whole_shares=False)
    return execute(1 - weights.sum(-1), weights, change, torch.ones_like(weights), fractions).shares
