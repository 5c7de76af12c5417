"""Normalisation of flat observations and rewards by running statistics, for P members.

Observations become (x - mean) / sqrt(variance + 1e-8) and rewards r / sqrt(variance of R + 1e-8), where
R_t = gamma R_{t-1} + r_t is the discounted return so far; both are clipped at 10. Mean and variance are merged step by
step (Chan, Golub and LeVeque 1979) in float64, as in VecNormalize of Stable-Baselines3 (Raffin et al. 2021). Statistics
are updated while collecting only.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from finrl_pod.types import EnvStep, Tensor

CLIP = 10.0
EPSILON = 1e-8
FIRST_COUNT = 1e-4  # weight of the initial mean 0 and variance 1, in samples
MEAN = "seen_mean"
VARIANCE = "seen_variance"  # saved with the weights of a member


def normalised(rows: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Rows [P, ..., S] normalised by mean and variance [P, S]: float64."""
    wide = (mean.shape[0], *([1] * (rows.dim() - 2)), mean.shape[1])
    return ((rows - mean.view(wide)) / (variance.view(wide) + EPSILON).sqrt()).clamp(-CLIP, CLIP)


class RunningMoments:
    """Running mean and variance [P, S] and the number of samples [P]."""

    def __init__(self, members: int, size: int, device: torch.device) -> None:
        self.mean = torch.zeros(members, size, dtype=torch.float64, device=device)
        self.variance = torch.ones_like(self.mean)
        self.count = torch.full((members,), FIRST_COUNT, dtype=torch.float64, device=device)

    def update(self, values: Tensor) -> None:
        """Merge values [P, E, S]."""
        values = values.double()
        n = values.shape[1]
        weight = self.count.unsqueeze(1)
        whole = weight + n
        change = values.mean(1) - self.mean
        squares = self.variance * weight + values.var(1, correction=0) * n + change.square() * weight * n / whole
        self.mean = self.mean + change * n / whole
        self.variance = squares / whole
        self.count = self.count + n


class RunningNormaliser:
    """Running normalisation of observations and rewards, for agents with `normalise`."""

    def __init__(self, discount: Tensor, size: int, dtype: torch.dtype) -> None:
        """discount: [P]; size: numbers S of a row; dtype: dtype of the results."""
        members = discount.shape[0]
        device = discount.device
        self.rows = RunningMoments(members, size, device)
        self.sums = RunningMoments(members, 1, device)
        self._discount = discount.double().unsqueeze(1)
        self._dtype = dtype
        self._returns = torch.zeros(members, 0, dtype=torch.float64, device=device)  # discounted returns R [P, E]

    def start(self, observation: Tensor) -> None:
        """Record the first rows [P, E, S] of a run; a resumed run has recorded them before."""
        if self._returns.shape[1] == 0:
            self._returns = self._returns.new_zeros(observation.shape[:2])
            self.rows.update(observation)

    def normalise(self, observation: Tensor) -> Tensor:
        """Rows [P, E, S], normalised by the current statistics."""
        return normalised(observation.double(), self.rows.mean, self.rows.variance).to(self._dtype)

    def update(self, out: EnvStep) -> Tensor:
        """Update the statistics with a step; returns its normalised rewards [P, E]."""
        reward = out.reward.double()
        self.rows.update(out.observation)
        self._returns = self._returns * self._discount + reward
        self.sums.update(self._returns.unsqueeze(-1))
        self._returns = torch.where(out.terminated | out.truncated, 0.0, self._returns)
        return (reward / (self.sums.variance + EPSILON).sqrt()).clamp(-CLIP, CLIP).to(self._dtype)

    def weights(self) -> dict[str, Tensor]:
        """Statistics needed for acting, [P, S] each."""
        return {MEAN: self.rows.mean, VARIANCE: self.rows.variance}

    def member(self, p: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Copies of the state of a member: (saved with the weights, saved with the optimiser)."""
        training_state = {
            "seen_count": self.rows.count[p],
            "sums": torch.stack([self.sums.mean[p, 0], self.sums.variance[p, 0], self.sums.count[p]]),
            "earned": self._returns[p],
        }
        weights = {name: x[p].cpu().clone() for name, x in self.weights().items()}
        return weights, {name: x.cpu().clone() for name, x in training_state.items()}

    def load(self, p: int, weights: Mapping[str, Tensor], training_state: Mapping[str, Tensor]) -> None:
        """Overwrite a member."""
        if self._returns.shape[1] != (envs := training_state["earned"].shape[0]):
            self._returns = self._returns.new_zeros(len(self._returns), envs)
        self._returns[p] = training_state["earned"]
        for moments, mean, variance, count in (
            (self.rows, weights[MEAN], weights[VARIANCE], training_state["seen_count"]),
            (self.sums, *training_state["sums"]),
        ):
            moments.mean[p] = mean
            moments.variance[p] = variance
            moments.count[p] = count
