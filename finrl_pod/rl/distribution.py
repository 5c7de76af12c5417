"""The diagonal Gaussian that policies draw their scores from. All sums run over the D scores."""

from __future__ import annotations

import math

from finrl_pod.types import Tensor

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def _spread(log_std: Tensor, mean: Tensor) -> Tensor:
    """[P, D or 1] -> [P, 1, ..., D or 1], to broadcast against mean [P, ..., D]."""
    return log_std.view(log_std.shape[0], *([1] * (mean.dim() - 2)), log_std.shape[1])


def sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    """mean [P, ..., D] + std * noise of the same shape."""
    return mean + _spread(log_std, mean).exp() * noise


def log_probability(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """log N(action; mean, std), summed over D: [P, ...]."""
    spread = _spread(log_std, mean)
    scaled = (action - mean) * (-spread).exp()
    each = -0.5 * scaled.square().sum(-1)
    width = log_std.sum(-1) if log_std.shape[1] == mean.shape[-1] else log_std[:, 0] * mean.shape[-1]
    constant = width + HALF_LOG_2PI * mean.shape[-1]  # [P]
    return each - constant.view(-1, *([1] * (each.dim() - 1)))


def entropy(log_std: Tensor, size: int) -> Tensor:
    """Differential entropy of D = size scores, summed: [P]."""
    width = log_std.sum(-1) if log_std.shape[1] == size else log_std[:, 0] * size
    return width + (0.5 + HALF_LOG_2PI) * size
