"""The limit on gross exposure, for accounts that their cash alone does not hold back: shorts, leverage below 1."""

from __future__ import annotations

import torch

from finrl_pod.market.execution import equity
from finrl_pod.types import Tensor


def within_gross(trades: Tensor, cash: Tensor, shares: Tensor, prices: Tensor, leverage: float) -> Tensor:
    """Trades [..., N] after the limit on gross exposure: sum |shares * price| <= leverage * equity at these prices.

    What reduces a position is left as it is; what opens or adds to one is scaled down by one factor. An account that
    the market has moved above the limit can only reduce.
    """
    closing = torch.where(shares > 0, trades.clamp(min=-shares, max=torch.zeros_like(shares)), 0.0) + torch.where(
        shares < 0, trades.clamp(min=torch.zeros_like(shares), max=-shares), 0.0
    )
    opening = trades - closing
    room = leverage * equity(cash, shares, prices) - ((shares + closing).abs() * prices).sum(-1)
    need = (opening.abs() * prices).sum(-1).clamp(min=torch.finfo(prices.dtype).tiny)
    return closing + opening * (room / need).clamp(0, 1).unsqueeze(-1)
