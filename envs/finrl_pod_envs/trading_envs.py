"""Built-in market environments: portfolio weights, share trades, discrete trades."""

from __future__ import annotations

from typing import Any

from finrl_pod.arguments import check_arguments
from finrl_pod.errors import ConfigError, InputError
from finrl_pod.market.actions import (
    TRADE_FRACTION,
    choice_directions,
    choice_scores,
    number_of_choices,
    scores_to_weights,
)
from finrl_pod.market.execution import trades_to_weights
from finrl_pod.native.device import on_device
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import EnvStep, MarketTensor, Tensor
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.observation import EnvState


class PortfolioEnv(MarketEnv):
    """Portfolio weights: long-only with cash by default, optionally with shorts and leverage, or under a mandate.

    action: [P, E, 1 + N] scores (see `scores_to_weights`); under a mandate [P, E, N] scores of tilts, 0 for its base
    (see `finrl_pod.market.mandate`). observation.account: cash and holdings as fractions of the
    current equity.
    """

    KIND = "portfolio"

    def __init__(self, market: MarketTensor, config: EnvironmentConfig | None = None, **kwargs: object) -> None:
        super().__init__(market, config, **kwargs)  # type: ignore[arg-type]
        self.action_size = self.assets + 1
        self.action_kind = "direct" if self.config.short else "softmax"
        if self.mandate is not None:
            self.action_size = self.assets
            self.action_kind = "tilt"
        if type(self) is PortfolioEnv:
            self._use_native()

    def trades(self, action: Tensor, state: EnvState, close: Tensor, tradable: Tensor) -> tuple[Tensor, Tensor | None]:
        return trades_to_weights(self.target_weights(action, tradable), state.cash, state.shares, close), None

    def target_weights(self, action: Tensor, tradable: Tensor) -> Tensor:
        return scores_to_weights(action, tradable, short=self.config.short, leverage=self.config.leverage)

    def scale(self, equity: Tensor) -> Tensor:
        return equity.unsqueeze(-1).clamp(min=1e-9)


class StockTradingEnv(MarketEnv):
    """Numbers of shares to trade, in [-1, 1] times `hmax`.

    action: [P, E, N], clipped to [-1, 1]. observation.account: cash and holdings as fractions of the starting cash.
    With buy_allocation="sequential", whole_shares=True and fill="same_close" it follows FinRL's rules.
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
        state: EnvState,  # noqa: ARG002  the number of shares depends on the action only
        close: Tensor,  # noqa: ARG002
        tradable: Tensor,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor | None]:
        action = action.clamp(-1, 1)
        return action * self.config.hmax, action

    def scale(self, equity: Tensor) -> float:  # noqa: ARG002
        return self.config.cash


class DiscreteTradingEnv(MarketEnv):
    """Discrete trades, long-only: hold, or buy or sell one asset.

    action: [P, E, 1] whole numbers below `actions`. 0: hold; 1 to N: buy asset n for `TRADE_FRACTION` of equity; N + 1
    to 2 N: sell as much of it. Buys are limited to the cash, sales to the holdings. Under a mandate a choice tilts one
    asset up or down. observation.account: cash and holdings as fractions of the current equity.
    """

    KIND = "discrete"

    def __init__(self, market: MarketTensor, config: EnvironmentConfig | None = None, **kwargs: object) -> None:
        super().__init__(market, config, **kwargs)  # type: ignore[arg-type]
        if self.config.short or self.config.leverage != 1:
            raise ConfigError(
                'environment.kind "discrete" supports neither shorts nor leverage; set environment.short = false and '
                "environment.leverage = 1.0, or another kind"
            )
        self.action_size = 1
        self.action_kind = "discrete"
        self.actions = number_of_choices(self.assets)

    def step(self, action: Tensor, out: Tensor | None = None) -> EnvStep:
        """As `MarketEnv.step`. Raises InputError for an action that is not a choice.

        On a GPU such an action trades nothing, because a check would wait for the device.
        """
        wrong = (action < 0) | (action >= self.actions) | (action != action.round())
        if not on_device(self.device) and bool(wrong.any()):
            low = action.min().item()
            high = action.max().item()
            raise InputError(
                f"actions must be whole numbers from 0 to {self.actions - 1}, got numbers from {low:g} to {high:g}"
            )
        return super().step(action, out)

    def trades(self, action: Tensor, state: EnvState, close: Tensor, tradable: Tensor) -> tuple[Tensor, Tensor | None]:
        change = (choice_directions(action[..., 0], self.assets) * TRADE_FRACTION).to(self.dtype)
        equity = state.cash + (state.shares * close).sum(-1)
        shares = change * equity.unsqueeze(-1) / close
        return shares * tradable, None

    def tilt_scores(self, action: Tensor) -> Tensor:
        return choice_scores(action[..., 0], self.assets).to(self.dtype)

    def scale(self, equity: Tensor) -> Tensor:
        return equity.unsqueeze(-1).clamp(min=1e-9)


KINDS: dict[str, type[PortfolioEnv] | type[StockTradingEnv] | type[DiscreteTradingEnv]] = {
    "portfolio": PortfolioEnv,
    "stock_trading": StockTradingEnv,
    "discrete": DiscreteTradingEnv,
}


@check_arguments
def make_env(market: MarketTensor, config: EnvironmentConfig, **kwargs: Any) -> MarketEnv:
    """Make the environment of `config.kind`; `kwargs` as for MarketEnv. Raises ConfigError for an unknown kind."""
    if config.kind == "custom":
        raise ConfigError(
            'environment.kind "custom" has no market; finrl-pod tournament and train run it, and nothing else does'
        )
    if config.kind not in KINDS:
        raise ConfigError(f"environment.kind must be one of {', '.join(KINDS)}, got {config.kind!r}")
    return KINDS[config.kind](market, config, **kwargs)
