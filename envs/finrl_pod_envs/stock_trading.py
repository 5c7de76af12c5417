"""StockTradingEnv: an action is the number of shares to trade of each asset, scaled by hmax (FinRL's environment)."""

from __future__ import annotations

import torch

from finrl_pod.config import EnvironmentConfig
from finrl_pod.market.execution import equity
from finrl_pod.types import MarketTensor, Tensor
from finrl_pod_envs.market_env import EnvState, MarketEnv


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


class StockTradingEnv(MarketEnv):
    """Shares to trade, in [-1, 1] times `hmax`.

    action: [P, E, N], clipped to [-1, 1]. observation.account: cash and holdings as shares of the starting cash.
    With order="sequential", whole_shares=True and fill="same_close" it follows FinRL's rules. With shorts, the gross
    exposure is held within `leverage` times the equity at the decision's closes.
    """

    def __init__(self, market: MarketTensor, config: EnvironmentConfig | None = None, **kwargs: object) -> None:
        super().__init__(market, config or EnvironmentConfig(kind="stock_trading"), **kwargs)  # type: ignore[arg-type]
        self.action_size = self.assets

    def trades(
        self,
        action: Tensor,
        state: EnvState,
        close: Tensor,
        tradable: Tensor,  # noqa: ARG002  what cannot fill is cut for every environment alike
    ) -> tuple[Tensor, Tensor | None]:
        action = action.clamp(-1, 1)
        wanted = action * self.config.hmax
        # Without shorts and below or at full investment, the cash alone is the limit, and execution keeps it.
        if self.config.short or self.config.leverage < 1:
            wanted = within_gross(wanted, state.cash, state.shares, close, self.config.leverage)
        return wanted, action

    def scale(self, worth: Tensor) -> float:  # noqa: ARG002  the units do not depend on the account
        return self.config.cash
