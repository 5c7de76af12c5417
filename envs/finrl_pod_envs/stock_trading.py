"""StockTradingEnv: an action is the number of shares to trade of each asset, scaled by hmax (FinRL's environment)."""

from __future__ import annotations

from finrl_pod.config import EnvironmentConfig
from finrl_pod.types import MarketTensor, Tensor
from finrl_pod_envs.market_env import EnvState, MarketEnv


class StockTradingEnv(MarketEnv):
    """Shares to trade, in [-1, 1] times `hmax`.

    action: [P, E, N], clipped to [-1, 1]. observation.account: cash and holdings as shares of the starting cash.
    With order="sequential", whole_shares=True and fill="same_close" it follows FinRL's rules.
    """

    KIND = "stock_trading"

    def __init__(self, market: MarketTensor, config: EnvironmentConfig | None = None, **kwargs: object) -> None:
        super().__init__(market, config, **kwargs)  # type: ignore[arg-type]
        self.action_size = self.assets
        self.action_kind = "direct"
        if type(self) is StockTradingEnv:
            self._use_native()

    def trades(
        self,
        action: Tensor,
        state: EnvState,  # noqa: ARG002  a number of shares asks for no more than the action
        close: Tensor,  # noqa: ARG002
        tradable: Tensor,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor | None]:
        action = action.clamp(-1, 1)
        return action * self.config.hmax, action

    def scale(self, worth: Tensor) -> float:  # noqa: ARG002  the units do not depend on the account
        return self.config.cash
