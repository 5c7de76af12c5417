"""Conversion of policy actions to target weights, shared by environments and deployed strategies."""

from __future__ import annotations

from dataclasses import replace

import torch

from finrl_pod.market.execution import ExecutionRules, execute, limit_gross_exposure
from finrl_pod.market.mandate import TILT_SCALE
from finrl_pod.types import Tensor


def scores_to_weights(scores: Tensor, tradable: Tensor, *, short: bool, leverage: float) -> Tensor:
    """Convert scores [..., 1 + N] (cash first) to target weights [..., N] of equity; cash is the rest.

    Long-only: softmax over cash and the tradable assets, times leverage. With `short`: the assets' scores, scaled down
    so that their absolute values add up to at most `leverage`. Untradable assets get weight 0.
    """
    assets = scores[..., 1:]
    if short:
        open_scores = torch.where(tradable, assets, 0.0)
        gross = open_scores.abs().sum(-1, keepdim=True)
        return open_scores * leverage / gross.clamp(min=leverage)
    masked = torch.where(tradable, assets, -torch.inf)
    return torch.softmax(torch.cat([scores[..., :1], masked], -1), -1)[..., 1:] * leverage


def trades_as_weights(
    actions: Tensor,
    held: Tensor,
    tradable: Tensor,
    prices: Tensor,
    equity: Tensor,
    *,
    hmax: float,
    leverage: float,
    rules: ExecutionRules,
) -> Tensor:
    """Convert share trades, actions [..., N] in [-1, 1] times hmax, to the target weights [..., N] they result in.

    held: [..., N] weights; tradable, prices: [..., N]; equity: [...] in currency. The environment's limits apply
    at these prices: untradable positions stay, sales come first, and buys beyond the cash or the gross-exposure limit
    are reduced. An account above its limit is scaled down to it.
    """
    actions = actions.clamp(-1, 1)
    trades = torch.where(tradable, actions * hmax * prices / equity.unsqueeze(-1), 0.0)
    cash, units = 1 - held.sum(-1), torch.ones_like(held)  # for an account of equity 1, shares are weights
    if rules.limited:
        trades = limit_gross_exposure(trades, cash, held, units, leverage)
    fractions = replace(rules, whole_shares=False)
    target = execute(cash, held, trades, units, fractions, actions).shares
    gross = target.abs().sum(-1, keepdim=True)
    most = 1.0 + rules.borrow
    return target * (most / gross.clamp(min=most))


def number_of_choices(assets: int) -> int:
    """Number of discrete actions: hold, buy one of N, sell one of N."""
    return 2 * assets + 1


def weight_change(choice: Tensor, assets: int, trade_fraction: float) -> Tensor:
    """Change of weights [..., N] (float64) requested by a discrete action [...].

    0: none; 1 to N: `trade_fraction` more of asset n; N + 1 to 2 N: `trade_fraction` less of asset n.
    """
    bought = torch.arange(1, assets + 1, device=choice.device)
    chosen = choice.long().unsqueeze(-1)
    return ((chosen == bought).double() - (chosen == bought + assets).double()) * trade_fraction


def choice_scores(choice: Tensor, assets: int) -> Tensor:
    """Scores [..., N] (float64) of a mandate for a discrete action [...]: one asset tilted up or down, or none."""
    return weight_change(choice, assets, TILT_SCALE)


def choices_as_weights(
    choice: Tensor, held: Tensor, tradable: Tensor, *, trade_fraction: float, rules: ExecutionRules
) -> Tensor:
    """Target weights [..., N] after a discrete action [...] at today's prices.

    held: [..., N] weights. Sales are limited to the holdings, buys to the cash, costs included.
    """
    change = torch.where(tradable, weight_change(choice, held.shape[-1], trade_fraction), 0.0)
    change = torch.maximum(change, -held)
    fractions = replace(rules, whole_shares=False)
    return execute(1 - held.sum(-1), held, change, torch.ones_like(held), fractions).shares
