"""Rewards of a step: what an account earned between two fills, by the objective of `environment.reward`.

A built-in reward is a function of a `RewardStep` and has an entry in `REWARDS`. A custom reward is a function of an
`Interval`, named file.py:function or package.module:function.

Sources: over log returns, mean-variance utility E[r] + (1 - gamma) / 2 Var[r] is power utility of final wealth where
that is log-normal (Campbell and Viceira 2002, ch. 2). Differential Sharpe ratio: Moody and Saffell (1998), eq. 6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from finrl_pod.errors import InputError
from finrl_pod.settings.constraints import Constraint, check_value
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import Tensor
from finrl_pod.user_files import error_text, is_custom, stdout_to_stderr, unpinned, user_object

CHANGE_SCALE = 1e-4  # reward per currency unit (FinRL's reward scaling): a day of a $1M account is of order one
MIN_GROWTH = 1e-6  # bounds log growth at log(1e-6)
MIN_VARIANCE = 1e-10  # of the simple return, in the denominator of the differential Sharpe ratio
SHARPE_DECAY = 1 / 252  # of the moving moments of the differential Sharpe ratio: about a year of daily bars
# Second moment before the first return. Without it the second step of an episode weighs 180 times the hundredth.
SHARPE_PRIOR = 0.01**2
NOTHING = torch.empty(0)


class Interval(NamedTuple):
    """The interval between two fills, as custom rewards receive it: tensors [P, G, A], one number per account.

    before, after: equity in currency at the fill prices of both bars, `before` ahead of the trades of the first fill.
    turnover: value traded at the first fill, both sides, over `before`. base_growth: log growth over
    the interval of the base portfolio, rebalanced without costs; the mandate's, else equal weights.
    """

    before: Tensor
    after: Tensor
    turnover: Tensor
    base_growth: Tensor


class RewardStep(NamedTuple):
    """What a built-in reward depends on: tensors [P, G, A], one number per account.

    growth, base_growth: log growth of the account and of its base portfolio. risk_aversion: the setting. gain: change
    of equity in currency. simple_return: gain over equity. moments: [P, G, A, 2], moving first and second moment of the
    simple return before the step, for rewards with `has_moments`. The last three are missing after a kernel: it
    computes log growth only.
    """

    growth: Tensor
    base_growth: Tensor
    risk_aversion: float
    gain: Tensor = NOTHING
    simple_return: Tensor = NOTHING
    moments: Tensor = NOTHING


def log_return(step: RewardStep) -> Tensor:
    """Log growth of the account."""
    return step.growth


def active_return(step: RewardStep) -> Tensor:
    """Log growth of the account less the log growth of its base portfolio."""
    return step.growth - step.base_growth


def mean_variance(step: RewardStep) -> Tensor:
    """Log growth g with a charge for its square: g - (risk_aversion - 1) / 2 g^2."""
    return step.growth - 0.5 * (step.risk_aversion - 1) * step.growth * step.growth


def differential_sharpe(step: RewardStep) -> Tensor:
    """Derivative of the moving Sharpe ratio with respect to its decay, at 0: (B dA - A dB / 2) / (B - A^2)^(3/2).

    A, B: the moments before the step. 0 while B - A^2 is not positive.
    """
    first, second = step.moments.unbind(-1)
    d_first = step.simple_return - first
    d_second = step.simple_return * step.simple_return - second
    variance = second - first * first
    usable = variance > MIN_VARIANCE
    safe = torch.where(usable, variance, torch.ones_like(variance))
    value = (second * d_first - 0.5 * first * d_second) / safe**1.5
    return torch.where(usable, value, torch.zeros_like(value))


def change(step: RewardStep) -> Tensor:
    """Change of equity in units of 10,000 currency."""
    return step.gain * CHANGE_SCALE


@dataclass(frozen=True)
class Reward:
    """A built-in reward.

    kernel: output of the native kernel that the reward is computed from, "growth" or "gain"; None if the kernel has too
    little, and the environment then steps in torch. uses_base: True if it needs `base_growth`. has_moments: True if it
    needs `moments`.
    """

    function: Callable[[RewardStep], Tensor]
    kernel: Literal["growth", "gain"] | None = None
    uses_base: bool = False
    has_moments: bool = False


REWARDS: Mapping[str, Reward] = {
    "log_return": Reward(log_return, kernel="growth"),
    "active_return": Reward(active_return, kernel="growth", uses_base=True),
    "mean_variance": Reward(mean_variance, kernel="growth"),
    "differential_sharpe": Reward(differential_sharpe, has_moments=True),
    "change": Reward(change, kernel="gain"),
}
NAMES = Constraint(
    f"one of {', '.join(REWARDS)}, file.py:function, or package.module:function",
    lambda name: name in REWARDS or is_custom(name),
)


def check_reward(config: EnvironmentConfig) -> None:
    """Raises ConfigError for a reward that is neither built in nor named as a custom one."""
    check_value("environment.", config, "reward", config.reward, NAMES)


class RewardState:
    """The numbers that the reward of an environment keeps for each account; size: how many, S.

    [A, B], moments of the simple return, for rewards with `has_moments`. A deployed agent observes them too.
    """

    def __init__(self, config: EnvironmentConfig) -> None:
        self.has_moments = config.reward in REWARDS and REWARDS[config.reward].has_moments
        self.size = 2 * self.has_moments

    def initial(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """[*shape, S], the state of new accounts; None if there is none."""
        if not self.size:
            return None
        start = torch.tensor([0.0, SHARPE_PRIOR], dtype=dtype, device=device)
        return start.expand(*shape, self.size).clone()

    def advance(self, before: Tensor, after: Tensor, state: Tensor) -> Tensor:
        """The state [..., S] after equity moved from `before` to `after` [...]."""
        simple_return = growth_ratio(before, after) - 1
        first, second = state.unbind(-1)
        numbers = [
            first + SHARPE_DECAY * (simple_return - first),
            second + SHARPE_DECAY * (simple_return * simple_return - second),
        ]
        return torch.stack(numbers, -1)

    def observed(self, state: Tensor) -> Tensor:
        """The state [..., S] in numbers of order one, for observations."""
        first = state[..., :1]
        second = state[..., 1:]
        scale = (SHARPE_PRIOR * SHARPE_DECAY) ** 0.5
        return torch.cat([first / scale, second / SHARPE_PRIOR - 1], -1)


class StepReward:
    """The reward of the steps of an environment.

    state: the numbers that it keeps for each account. kernel, uses_base: attributes of `Reward`; a custom reward uses
    the base and no kernel. is_kernel_output: whether a kernel computes the reward itself.
    """

    def __init__(self, config: EnvironmentConfig) -> None:
        """Raises ConfigError for an unknown reward, InputError for a custom one that cannot be loaded or fails on a
        trial interval.
        """
        check_reward(config)
        self._risk_aversion = config.risk_aversion
        self._custom: CustomReward | None = None
        reward = REWARDS.get(config.reward)
        if reward is None:
            self._custom = CustomReward(config.reward)
            reward = Reward(log_return, uses_base=True)
        self._function = reward.function
        self.kernel = reward.kernel
        self.uses_base = reward.uses_base
        self.is_kernel_output = reward.kernel == "gain" or (reward.kernel == "growth" and reward.function is log_return)
        self.state = RewardState(config)

    def __call__(self, interval: Interval, state: Tensor | None) -> Tensor:
        """Rewards [P, G, A]. state: [P, G, A, S], before the interval."""
        if self._custom is not None:
            return self._custom(interval)
        before = interval.before
        after = interval.after
        step = RewardStep(
            log_growth(before, after),
            interval.base_growth,
            self._risk_aversion,
            after - before,
            growth_ratio(before, after) - 1,
            NOTHING if state is None else state,
        )
        return self._function(step)

    def of_log_growth(self, growth: Tensor, base_growth: Tensor) -> Tensor:
        """Rewards of log growth that a kernel computed. growth, base_growth: tensors of one shape."""
        return self._function(RewardStep(growth, base_growth, self._risk_aversion))


class CustomReward:
    """A function of an `Interval`, named file.py:function or package.module:function, with checked results."""

    # The function is tried on it before anything runs.
    TRIAL = Interval(*(torch.tensor([[[x, y]]]) for x, y in ((1e6, 2e6), (1.01e6, 1.9e6), (0.5, 0.0), (0.01, 0.01))))

    def __init__(self, name: str) -> None:
        """Raises InputError for a function that is missing, or fails on a trial interval."""
        self._name = unpinned(name)
        self._function = user_object(name, f"the reward {self._name}", again=True)
        if not callable(self._function):
            raise InputError(f"the reward {self._name} must be a function, got {type(self._function).__name__}")
        self(self.TRIAL)

    def __call__(self, interval: Interval) -> Tensor:
        """Rewards [P, G, A]. Raises InputError if the function fails or returns anything else than one number each."""
        shape = tuple(interval.before.shape)
        try:
            with stdout_to_stderr():
                reward: Any = self._function(interval)
        except Exception as error:
            raise InputError(f"the reward {self._name} failed: {error_text(error)}") from error
        if not isinstance(reward, torch.Tensor) or tuple(reward.shape) != shape:
            description = tuple(reward.shape) if isinstance(reward, torch.Tensor) else type(reward).__name__
            raise InputError(
                f"the reward {self._name} must return a tensor of shape {shape}, one number per account, got "
                f"{description}"
            )
        wrong = int((~torch.isfinite(reward)).sum())
        if wrong:
            raise InputError(
                f"the reward {self._name} must return finite numbers, got NaN or infinity for {wrong} of "
                f"{reward.numel()} accounts"
            )
        if interval.after.requires_grad and not reward.requires_grad:
            raise InputError(
                f"the reward {self._name} must be computed from its interval by torch operations: this algorithm "
                "differentiates it"
            )
        return reward.to(interval.before.dtype)


def log_growth(before: Tensor, after: Tensor) -> Tensor:
    """log(after / before), bounded below at log(1e-6), also for equity at or below zero."""
    return growth_ratio(before, after).clamp(min=MIN_GROWTH).log()


def growth_ratio(before: Tensor, after: Tensor) -> Tensor:
    """after / before, 0 where before is not positive: the ratio of two negative equities would be a gain."""
    alive = before > 0
    return torch.where(alive, after, 0.0) / torch.where(alive, before, 1.0)
