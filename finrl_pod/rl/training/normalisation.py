"""Flat rows and rewards by running statistics: what a member's run has seen so far, for P members.

Rows become (x - mean) / sqrt(variance + 1e-8) and rewards r / sqrt(variance of R + 1e-8), where R_t = discount R_{t-1}
+ r_t is the discounted sum of an episode's rewards so far, both cut off at 10. Mean and variance are merged step by
step (Chan, Golub and LeVeque 1979), in float64. So does VecNormalize of Stable-Baselines3 (Raffin et al. 2021).
Statistics move while an agent collects, and stand still whenever it is only asked how it would act.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from finrl_pod.types import EnvStep, Tensor

MOST, EPSILON = 10.0, 1e-8
FIRST_COUNT = 1e-4  # what mean 0 and variance 1 weigh at the start, in samples
MEAN, VARIANCE = "seen_mean", "seen_variance"  # beside a member's weights: it cannot act without them


def normalised(rows: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """rows [P, ..., S] by mean and variance [P, S]: float64."""
    wide = (mean.shape[0], *([1] * (rows.dim() - 2)), mean.shape[1])
    return ((rows - mean.view(wide)) / (variance.view(wide) + EPSILON).sqrt()).clamp(-MOST, MOST)


class RunningMoments:
    """Mean and variance [P, S] of all that was seen, and how much that was [P]."""

    def __init__(self, members: int, size: int, device: torch.device) -> None:
        self.mean = torch.zeros(members, size, dtype=torch.float64, device=device)
        self.variance = torch.ones_like(self.mean)
        self.count = torch.full((members,), FIRST_COUNT, dtype=torch.float64, device=device)

    def update(self, values: Tensor) -> None:
        """values: [P, E, S]."""
        values = values.double()
        n, weight = values.shape[1], self.count.unsqueeze(1)
        whole = weight + n
        change = values.mean(1) - self.mean
        squares = self.variance * weight + values.var(1, correction=0) * n + change.square() * weight * n / whole
        self.mean, self.variance = self.mean + change * n / whole, squares / whole
        self.count = self.count + n


class RunningNormaliser:
    """The view of a worker's environment that an agent with `normalise` learns by."""

    def __init__(self, discount: Tensor, size: int, dtype: torch.dtype) -> None:
        """discount: [P]; size: numbers of a row; dtype: of what is handed on."""
        members, device = discount.shape[0], discount.device
        self.rows, self.sums = RunningMoments(members, size, device), RunningMoments(members, 1, device)
        self._discount, self._dtype = discount.double().unsqueeze(1), dtype
        self._earned = torch.zeros(members, 0, dtype=torch.float64, device=device)  # R of each environment [P, E]

    # ------------------------------------------------------------------ a view

    def start(self, observation: Tensor) -> None:
        """The first rows [P, E, S] of a run; those of one that goes on have been seen."""
        if self._earned.shape[1] == 0:
            self._earned = self._earned.new_zeros(observation.shape[:2])
            self.rows.update(observation)

    def normalise(self, observation: Tensor) -> Tensor:
        """[P, E, S] by what is known now."""
        return normalised(observation.double(), self.rows.mean, self.rows.variance).to(self._dtype)

    def update(self, out: EnvStep) -> Tensor:
        """Look at a step's rows and rewards; returns its rewards [P, E] by what is known then."""
        reward = out.reward.double()
        self.rows.update(out.observation)
        self._earned = self._earned * self._discount + reward
        self.sums.update(self._earned.unsqueeze(-1))
        self._earned = torch.where(out.terminated | out.truncated, 0.0, self._earned)
        return (reward / (self.sums.variance + EPSILON).sqrt()).clamp(-MOST, MOST).to(self._dtype)

    # ------------------------------------------------------------------ a member's state

    def weights(self) -> dict[str, Tensor]:
        """What acting needs, [P, S] each."""
        return {MEAN: self.rows.mean, VARIANCE: self.rows.variance}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of a member's."""
        return {name: tuple(x.shape[1:]) for name, x in self.weights().items()}

    def member(self, p: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Copies: beside the weights, and beside the optimiser."""
        rest = {
            "seen_count": self.rows.count[p],
            "sums": torch.stack([self.sums.mean[p, 0], self.sums.variance[p, 0], self.sums.count[p]]),
            "earned": self._earned[p],
        }
        weights, rest = (
            {name: x.cpu().clone() for name, x in part.items()}
            for part in ({name: x[p] for name, x in self.weights().items()}, rest)
        )
        return weights, rest

    def load(self, p: int, weights: Mapping[str, Tensor], rest: Mapping[str, Tensor]) -> None:
        """Overwrite a member."""
        if self._earned.shape[1] != (lanes := rest["earned"].shape[0]):
            self._earned = self._earned.new_zeros(len(self._earned), lanes)
        self._earned[p] = rest["earned"]
        for moments, mean, variance, count in (
            (self.rows, weights[MEAN], weights[VARIANCE], rest["seen_count"]),
            (self.sums, *rest["sums"]),
        ):
            moments.mean[p], moments.variance[p], moments.count[p] = mean, variance, count


class IdentityNormaliser:
    """The view that changes nothing."""

    def start(self, observation: Any) -> None:
        """Nothing to be seen."""

    def normalise(self, observation: Any) -> Any:
        """The same."""
        return observation

    def update(self, out: EnvStep) -> Tensor:
        """The step's rewards."""
        return out.reward
