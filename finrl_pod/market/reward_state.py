"""State that a reward keeps of an account: moments of the differential Sharpe ratio, and the drawdown.

Environments keep it in their state; a deployed agent observes it too, so it is computed here for both.
"""

from __future__ import annotations

import torch

from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import Tensor

SHARPE_DECAY = 1 / 252  # of the moving moments of the differential Sharpe ratio: about a year of daily bars
# Second moment before the first return. Without it the second step of an episode weighs 180 times the hundredth.
SHARPE_PRIOR = 0.01**2
MIN_GROWTH = 1e-6  # bounds log growth at log(1e-6)


class RewardState:
    """The numbers that the reward of an environment keeps for each account; size: how many, S.

    [A, B] of the differential Sharpe ratio (`differential_sharpe`), then the drawdown, log of the peak over equity
    (`drawdown_penalty`).
    """

    def __init__(self, config: EnvironmentConfig) -> None:
        self.has_moments = config.reward == "differential_sharpe"
        self.has_drawdown = config.drawdown_penalty > 0
        self.size = 2 * self.has_moments + self.has_drawdown

    def initial(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """[*shape, S], the state of new accounts; None if there is none."""
        if not self.size:
            return None
        start = [0.0, SHARPE_PRIOR] * self.has_moments + [0.0] * self.has_drawdown
        return torch.tensor(start, dtype=dtype, device=device).expand(*shape, self.size).clone()

    def advance(self, before: Tensor, after: Tensor, state: Tensor) -> Tensor:
        """The state [..., S] after equity moved from `before` to `after` [...]."""
        numbers = []
        if self.has_moments:
            simple_return = growth_ratio(before, after) - 1
            first, second = state[..., 0], state[..., 1]
            numbers += [
                first + SHARPE_DECAY * (simple_return - first),
                second + SHARPE_DECAY * (simple_return * simple_return - second),
            ]
        if self.has_drawdown:
            numbers.append((state[..., -1] - log_growth(before, after)).clamp(min=0))
        return torch.stack(numbers, -1)

    def observed(self, state: Tensor) -> Tensor:
        """The state [..., S] in numbers of order one, for observations."""
        if not self.has_moments:
            return state
        first, second = state[..., :1], state[..., 1:2]
        scale = (SHARPE_PRIOR * SHARPE_DECAY) ** 0.5
        return torch.cat([first / scale, second / SHARPE_PRIOR - 1, state[..., 2:]], -1)


def log_growth(before: Tensor, after: Tensor) -> Tensor:
    """log(after / before), bounded below at log(1e-6), which is also returned for equity at or below zero."""
    return growth_ratio(before, after).clamp(min=MIN_GROWTH).log()


def growth_ratio(before: Tensor, after: Tensor) -> Tensor:
    """after / before, 0 where before is not positive: the ratio of two negative equities would be a gain."""
    alive = before > 0
    return torch.where(alive, after, 0.0) / torch.where(alive, before, 1.0)
