"""DiscreteTradingEnv: an action is one choice out of 2 N + 1, which picks an asset and a move."""

from __future__ import annotations

from finrl_pod.config import EnvironmentConfig
from finrl_pod.errors import ConfigError, InputError
from finrl_pod.market.choices import number_of_choices, wanted_change
from finrl_pod.types import EnvStep, MarketTensor, Tensor
from finrl_pod_envs.market_env import EnvState, MarketEnv


class DiscreteTradingEnv(MarketEnv):
    """Long only. 0: hold on; 1 to N: buy asset n for `lot` of the equity; N + 1 to 2 N: sell as much of it.

    action: [P, E, 1] whole numbers below `actions`. observation.account: cash and holdings as shares of the current
    equity. No more is bought than the cash pays for, no more sold than is held.
    """

    KIND = "discrete"

    def __init__(self, market: MarketTensor, config: EnvironmentConfig | None = None, **kwargs: object) -> None:
        super().__init__(market, config, **kwargs)  # type: ignore[arg-type]
        if self.config.short or self.config.leverage != 1:
            raise ConfigError(
                'environment.kind "discrete" knows neither shorts nor leverage; set environment.short = false and '
                "environment.leverage = 1.0, or another kind"
            )
        self.action_size = 1
        self.action_kind = "discrete"
        self.actions = number_of_choices(self.assets)

    def step(self, action: Tensor, rows: Tensor | None = None) -> EnvStep:
        """As every environment's. Raises InputError for a number that is no choice."""
        if bool(((action < 0) | (action >= self.actions) | (action != action.round())).any()):
            low, high = action.min().item(), action.max().item()
            raise InputError(
                f"actions must be whole numbers from 0 to {self.actions - 1}, got numbers from {low:g} to {high:g}"
            )
        return super().step(action, rows)

    def trades(self, action: Tensor, state: EnvState, close: Tensor, tradable: Tensor) -> tuple[Tensor, Tensor | None]:
        change = wanted_change(action[..., 0], self.assets, self.config.lot).to(self.dtype)
        worth = state.cash + (state.shares * close).sum(-1)
        shares = change * worth.unsqueeze(-1) / close
        return shares * tradable, None

    def scale(self, worth: Tensor) -> Tensor:
        return worth.unsqueeze(-1).clamp(min=1e-9)
