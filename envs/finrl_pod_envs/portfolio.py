"""PortfolioEnv: an action is a score for cash and for each asset; the scores become target weights."""

from __future__ import annotations

from finrl_pod.config import EnvironmentConfig
from finrl_pod.market.execution import trades_to_weights
from finrl_pod.market.weights import scores_to_weights
from finrl_pod.types import MarketTensor, Tensor
from finrl_pod_envs.market_env import EnvState, MarketEnv


class PortfolioEnv(MarketEnv):
    """Target weights; long-only with cash by default, shorts and leverage by setting.

    action: [P, E, 1 + N] scores. observation.account: cash and holdings as shares of the current equity.
    """

    KIND = "portfolio"

    def __init__(self, market: MarketTensor, config: EnvironmentConfig | None = None, **kwargs: object) -> None:
        super().__init__(market, config, **kwargs)  # type: ignore[arg-type]
        self.action_size = self.assets + 1
        self.action_kind = "direct" if self.config.short else "softmax"
        if type(self) is PortfolioEnv:
            self._use_native()

    def trades(self, action: Tensor, state: EnvState, close: Tensor, tradable: Tensor) -> tuple[Tensor, Tensor | None]:
        weights = scores_to_weights(action, tradable, short=self.config.short, leverage=self.config.leverage)
        return trades_to_weights(weights, state.cash, state.shares, close), None

    def scale(self, worth: Tensor) -> Tensor:
        return worth.unsqueeze(-1).clamp(min=1e-9)
