"""Action distributions: a diagonal Gaussian over D scores, and a categorical distribution over D choices.

Scores of assets that cannot be traded have no effect, so they are left out of densities, entropies and divergences:
`valid` [P, ..., D] bool marks the scores that count, None if all do (see `valid_scores`).
"""

# ruff: noqa: ARG002 (arguments of the interface)

from __future__ import annotations

import math

import torch

from finrl_pod.random import RandomSource
from finrl_pod.types import Tensor

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def _spread(log_std: Tensor, mean: Tensor) -> Tensor:
    """[P, D or 1] -> [P, 1, ..., D or 1], to broadcast against mean [P, ..., D]; per-state values are unchanged."""
    if log_std.dim() > 2:
        return log_std
    return log_std.view(log_std.shape[0], *([1] * (mean.dim() - 2)), log_std.shape[1])


def valid_scores(tradable: Tensor | None, action_size: int) -> Tensor | None:
    """Scores that count [P, K, 1, D] for tradable assets [P, K, N]; cash, if it has a score, always does."""
    if tradable is None:
        return None
    p, k, n = tradable.shape
    if action_size == n:
        return tradable.unsqueeze(2)
    return torch.cat([tradable.new_ones(p, k, action_size - n), tradable], -1).unsqueeze(2)


class Gaussian:
    """N(mean, exp(log_std)^2): a distribution of actions [P, ..., D].

    mean: output of the last policy layer, [P, ..., D]; log_std: [P, D or 1] or [P, ..., D].
    """

    def noise(self, shape: tuple[int, ...], source: RandomSource, dtype: torch.dtype) -> Tensor:
        """Noise for `sample` in H steps, shape [H, ...] for each member: [H, P, ...]. Standard normal."""
        return source.normal(shape, dtype, dim=1)

    def sample(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
        """Actions sampled with `noise`."""
        return mean + _spread(log_std, mean).exp() * noise

    def log_probability(self, action: Tensor, mean: Tensor, log_std: Tensor, valid: Tensor | None = None) -> Tensor:
        """Log-density [P, ...] of actions, summed over the valid of D."""
        spread = _spread(log_std, mean)
        deviation = (action - mean) * (-spread).exp()
        if valid is not None:
            each = 0.5 * deviation.square() + (spread + HALF_LOG_2PI)
            return -torch.where(valid, each, 0.0).sum(-1)
        each = -0.5 * deviation.square().sum(-1)
        constant = _width(log_std, mean.shape[-1]) + HALF_LOG_2PI * mean.shape[-1]
        return each - constant.view(-1, *([1] * (each.dim() - 1))) if log_std.dim() == 2 else each - constant

    def entropy(self, mean: Tensor, log_std: Tensor, valid: Tensor | None = None) -> Tensor:
        """Differential entropy [P], summed over the valid of D and averaged over states."""
        if valid is not None:
            each = torch.where(valid, _spread(log_std, valid) + (0.5 + HALF_LOG_2PI), 0.0)  # [P, ..., D]
            return each.sum(-1).flatten(1).mean(1)
        size = mean.shape[-1]
        width = _width(log_std, size)
        return (width if width.dim() == 1 else width.flatten(1).mean(1)) + (0.5 + HALF_LOG_2PI) * size

    def best(self, mean: Tensor) -> Tensor:
        """Actions without exploration."""
        return mean


def _width(log_std: Tensor, size: int) -> Tensor:
    """log_std summed over the scores: [P, D or 1] -> [P], [P, ..., D] -> [P, ...]."""
    return log_std.sum(-1) if log_std.shape[-1] == size else log_std[..., 0] * size


class Categorical:
    """Choice c with probability softmax(mean)_c. Actions [P, ..., 1] int64; log_std and valid are not used."""

    def noise(self, shape: tuple[int, ...], source: RandomSource, dtype: torch.dtype) -> Tensor:
        """Gumbel noise: the argmax of logits plus noise is a softmax sample (Gumbel 1954)."""
        return -source.exponential(shape, dtype, dim=1).log()

    def sample(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
        return (mean + noise).argmax(-1, keepdim=True)

    def log_probability(self, action: Tensor, mean: Tensor, log_std: Tensor, valid: Tensor | None = None) -> Tensor:
        return torch.log_softmax(mean, -1).gather(-1, action).squeeze(-1)

    def entropy(self, mean: Tensor, log_std: Tensor, valid: Tensor | None = None) -> Tensor:
        log_prob = torch.log_softmax(mean, -1)
        return -(log_prob.exp() * log_prob).sum(-1).flatten(1).mean(1)

    def best(self, mean: Tensor) -> Tensor:
        return mean.argmax(-1, keepdim=True)


GAUSSIAN = Gaussian()
CATEGORICAL = Categorical()


def distribution_of(action: str) -> Gaussian | Categorical:
    """Distribution for a kind of action: categorical for "discrete", else Gaussian."""
    return CATEGORICAL if action == "discrete" else GAUSSIAN
