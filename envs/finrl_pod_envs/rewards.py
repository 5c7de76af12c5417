"""Rewards of a step: what an account earned between two fills, by the objective of `environment.reward`.

With the log growth g = log(after / before) of an account, and b that of its base portfolio:

    log_return            g
    active_return         g - b
    mean_variance         g - (risk_aversion - 1) / 2 g^2
    differential_sharpe   (B dA - A dB / 2) / (B - A^2)^(3/2), moments A, B of the simple return
    change                (after - before) / 10,000
    file.py:function      of the `Interval`

and, from rewards in units of log growth, the penalties

    turnover_penalty * turnover
    cvar_penalty * max(-g - cvar_loss, 0) / (1 - cvar_level)
    drawdown_penalty * drawdown / bars of a year

Sources: over log returns, mean-variance utility E[r] + (1 - gamma) / 2 Var[r] is power utility of final wealth where
that is log-normal (Campbell and Viceira 2002, ch. 2). Differential Sharpe ratio: Moody and Saffell (1998), eq. 6.
Shortfall beyond a fixed loss: the function of Rockafellar and Uryasev (2000), eq. 4, whose minimum over the loss is the
conditional value at risk (CVaR). Mean drawdown: the conditional drawdown at risk at level 0 of Chekhlov, Uryasev and
Zabarankin (2005).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from finrl_pod.errors import ConfigError, InputError
from finrl_pod.market.reward_state import RewardState, growth_ratio, log_growth
from finrl_pod.settings.run import REWARDS, EnvironmentConfig
from finrl_pod.types import Tensor
from finrl_pod.user_files import (
    entry_point,
    error_text,
    import_user_file,
    is_file_reference,
    stdout_to_stderr,
    unpinned,
    written_path,
)

CHANGE_SCALE = 1e-4  # reward per currency unit (FinRL's reward scaling): a day of a $1M account is of order one
MIN_VARIANCE = 1e-10  # of the simple return, in the denominator of the differential Sharpe ratio
IN_LOG_GROWTH = ("log_return", "active_return", "mean_variance")  # rewards that penalties may be subtracted from
PENALTIES = ("turnover_penalty", "cvar_penalty", "drawdown_penalty")


class Interval(NamedTuple):
    """What a step's reward may depend on: tensors [P, G, A], one number per account, for the interval of two fills.

    before, after: equity in currency at the fill prices of both bars, `before` ahead of the first fill's trades.
    turnover: value traded at the first fill, both sides, over `before`. base_growth: log growth over
    the interval of the base portfolio, rebalanced without costs; the mandate's, else equal weights.
    """

    before: Tensor
    after: Tensor
    turnover: Tensor
    base_growth: Tensor


# A user's reward is tried on it before anything runs.
TRIAL = Interval(*(torch.tensor([[[x, y]]]) for x, y in ((1e6, 2e6), (1.01e6, 1.9e6), (0.5, 0.0), (0.01, 0.01))))

UserReward = Callable[[Interval], Tensor]


class StepReward:
    """The reward of an environment's steps.

    state: the numbers that it keeps for each account. growth_only: whether it follows from turnover and the
    log growth of the account and its base, so that a kernel that computes log growth can be used. uses_base: whether
    it needs the base's.
    """

    def __init__(self, config: EnvironmentConfig, bars_per_year: float) -> None:
        """Raises ConfigError for settings in conflict, InputError for a user's reward that cannot be loaded or
        fails on a trial interval.
        """
        check_reward(config)
        self.name, self._config, self._bars_per_year = config.reward, config, bars_per_year
        self._user = None if config.reward in REWARDS else load_user_reward(config.reward)
        if self._user is not None:
            self._call_user(self._user, TRIAL)
        self.state = RewardState(config)
        self.growth_only = config.reward in IN_LOG_GROWTH and not self.state.has_drawdown
        self.is_unmodified = config.reward in ("log_return", "change") and not any(
            getattr(config, name) for name in PENALTIES
        )
        self.uses_base = config.reward == "active_return" or self._user is not None

    def __call__(self, interval: Interval, state: Tensor | None) -> Tensor:
        """Rewards [P, G, A]. state: [P, G, A, S], before the interval."""
        before, after = interval.before, interval.after
        if self._user is not None:
            return self._call_user(self._user, interval)
        if self.name == "change":
            return (after - before) * CHANGE_SCALE
        if self.state.has_moments:
            assert state is not None
            return differential_sharpe(growth_ratio(before, after) - 1, state[..., 0], state[..., 1])
        reward = self.of_log_growth(log_growth(before, after), interval.turnover, interval.base_growth)
        if self.state.has_drawdown:
            assert state is not None
            drawdown = self.state.advance(before, after, state)[..., -1]
            reward = reward - self._config.drawdown_penalty / self._bars_per_year * drawdown
        return reward

    def of_log_growth(self, growth: Tensor, turnover: Tensor, base_growth: Tensor) -> Tensor:
        """Rewards less the penalties that need no state. growth, base_growth: log growth; tensors of one shape."""
        config, reward = self._config, growth
        if config.reward == "active_return":
            reward = growth - base_growth
        elif config.reward == "mean_variance":
            reward = growth - 0.5 * (config.risk_aversion - 1) * growth * growth
        if config.turnover_penalty:
            reward = reward - config.turnover_penalty * turnover
        if config.cvar_penalty:
            shortfall = (-growth - config.cvar_loss).clamp(min=0)
            reward = reward - config.cvar_penalty / (1 - config.cvar_level) * shortfall
        return reward

    def _call_user(self, function: UserReward, interval: Interval) -> Tensor:
        shape = tuple(interval.before.shape)
        try:
            with stdout_to_stderr():
                reward: Any = function(interval)
        except Exception as error:
            raise InputError(f"the reward {unpinned(self.name)} failed: {error_text(error)}") from error
        if not isinstance(reward, torch.Tensor) or tuple(reward.shape) != shape:
            got = tuple(reward.shape) if isinstance(reward, torch.Tensor) else type(reward).__name__
            raise InputError(
                f"the reward {unpinned(self.name)} must return a tensor of shape {shape}, one number per account, "
                f"got {got}"
            )
        wrong = int((~torch.isfinite(reward)).sum())
        if wrong:
            raise InputError(
                f"the reward {unpinned(self.name)} must return finite numbers, got NaN or infinity for {wrong} of "
                f"{reward.numel()} accounts"
            )
        if interval.after.requires_grad and not reward.requires_grad:
            raise InputError(
                f"the reward {unpinned(self.name)} must be computed from its interval by torch operations: this "
                "algorithm differentiates it"
            )
        return reward.to(interval.before.dtype)


def differential_sharpe(simple_return: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Derivative of the moving Sharpe ratio with respect to its decay, at 0.

    first, second: the moments A and B before the return. 0 while B - A^2 is not positive.
    """
    d_first, d_second = simple_return - first, simple_return * simple_return - second
    variance = second - first * first
    usable = variance > MIN_VARIANCE
    safe = torch.where(usable, variance, torch.ones_like(variance))
    value = (second * d_first - 0.5 * first * d_second) / safe**1.5
    return torch.where(usable, value, torch.zeros_like(value))


def check_reward(config: EnvironmentConfig) -> None:
    """Raises ConfigError for penalties that the reward cannot have."""
    used = [name for name in PENALTIES if getattr(config, name)]
    if used and config.reward not in IN_LOG_GROWTH:
        raise ConfigError(
            f"environment.{used[0]} is in log growth and needs environment.reward to be one of "
            f"{', '.join(IN_LOG_GROWTH)}, got {config.reward!r}; set it to 0 or choose another reward"
        )


def load_user_reward(text: str) -> UserReward:
    """Import `file.py` and return its `function`, or the entry point of a package.

    Raises InputError for a file or a function that is missing.
    """
    if not is_file_reference(text):
        function = entry_point("rewards", text)
        if not callable(function):
            raise ConfigError(
                f"environment.reward must be one of {', '.join(REWARDS)}, or file.py:function, got {text!r}"
            )
        packaged: UserReward = function
        return packaged
    file, _, name = text.rpartition(":")
    function = getattr(import_user_file(Path(file), f"the reward {text}"), name, None)
    if not callable(function):
        written = written_path(Path(file))
        raise InputError(f"{written} has no function {name}; give one that it defines, as {written.name}:my_reward")
    reward: UserReward = function
    return reward
