"""Reward functions: equity before and after an interval, and a memory, to (reward, new memory).

All tensors are [P, G, A]; `memory` is [2, P, G, A] for stateful rewards, else None.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from finrl_pod.errors import ConfigError
from finrl_pod.types import Tensor

CHANGE_SCALE = 1e-4  # reward per currency unit (FinRL's reward scaling): a day of a $1M account is of order one
SHARPE_DECAY = 1 / 252  # of the moving moments of the differential Sharpe ratio: about a year of daily bars
MIN_GROWTH = 1e-6  # bounds the reward of ruin at log(1e-6)

Reward = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]


def log_growth(before: Tensor, after: Tensor) -> Tensor:
    """log(after / before), bounded below at log(1e-6), which is also returned for equity at or below zero."""
    return _ratio(before, after).clamp(min=MIN_GROWTH).log()


def _ratio(before: Tensor, after: Tensor) -> Tensor:
    """after / before, 0 where before is not positive: the ratio of two negative equities would be a gain."""
    alive = before > 0
    return torch.where(alive, after, 0.0) / torch.where(alive, before, 1.0)


def log_return(before: Tensor, after: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Log return log(after / before); its sum over an episode is the log growth of the account."""
    return log_growth(before, after), memory


def change(before: Tensor, after: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Change of equity in currency, times 1e-4 (as in FinRL)."""
    return (after - before) * CHANGE_SCALE, memory


def differential_sharpe(before: Tensor, after: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Differential Sharpe ratio, Moody and Saffell (1998), eq. 6: (B dA - A dB / 2) / (B - A^2)^(3/2).

    A and B are moving first and second moments of the simple return; the reward is 0 while B - A^2 is not positive.
    """
    if memory is None:
        raise ValueError("differential_sharpe needs a memory of two moments")
    gain = _ratio(before, after) - 1
    first, second = memory.unbind(0)
    d_first, d_second = gain - first, gain * gain - second
    spread = second - first * first
    usable = spread > 1e-10
    safe = torch.where(usable, spread, torch.ones_like(spread))
    value = (second * d_first - 0.5 * first * d_second) / safe**1.5
    moved = torch.stack([first + SHARPE_DECAY * d_first, second + SHARPE_DECAY * d_second])
    return torch.where(usable, value, torch.zeros_like(value)), moved


REWARDS: dict[str, Reward] = {
    "log_return": log_return,
    "change": change,
    "differential_sharpe": differential_sharpe,
}


def reward(name: str) -> Reward:
    """Look up a reward by name. Raises ConfigError for an unknown name."""
    if name not in REWARDS:
        raise ConfigError(f"reward must be one of {', '.join(REWARDS)}, got {name!r}")
    return REWARDS[name]
