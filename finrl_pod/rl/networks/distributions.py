"""Action distributions: a diagonal Gaussian over D scores, a categorical one over D choices, and gSDE.

Scores of assets that cannot be traded have no effect, so they are left out of densities, entropies and divergences:
`valid` [P, ..., D] bool marks the scores that count, None if all do (see `valid_scores`).

Generalised state-dependent exploration (Raffin et al. 2021, arXiv:2005.05719) perturbs the actions of an MLP policy by
a function of the state that changes every few steps. With z(s) the last hidden layer of the actor and E a matrix of
standard normal numbers,

    action = mean(s) + z(s) (exp(log_std) * E),   so that   action | s ~ N(mean(s), z(s)^2 exp(2 log_std) + epsilon).

While E is kept, equal states give equal actions. As in the paper, the gradient of log_std stops at z.
"""

# ruff: noqa: ARG002 (arguments of the interface)

from __future__ import annotations

import math

import torch

from finrl_pod.random import ComputedSteps, RandomSource, Steps
from finrl_pod.rl.networks.layers import Params
from finrl_pod.rl.networks.policies import DEFAULT_INIT, MlpPolicy, PolicyInit
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

    def noise(self, shape: tuple[int, ...], source: RandomSource, dtype: torch.dtype) -> Steps:
        """Noise for `sample` in H steps, shape [H, ...] for each member: [H, P, ...]. Standard normal."""
        return source.normal_steps(shape[0], shape[1:], dtype)

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

    def noise(self, shape: tuple[int, ...], source: RandomSource, dtype: torch.dtype) -> Steps:
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


VARIANCE_FLOOR = 1e-6


class StateNoisePolicy(MlpPolicy):
    """MLP policy with a matrix log_std [H, D] for each member, H units of the last hidden layer."""

    def init(self, generator: torch.Generator, dtype: torch.dtype, start: PolicyInit = DEFAULT_INIT) -> Params:
        tensors = super().init(generator, dtype, start)
        shape = (self.spec.hidden[-1], self.spec.action_size)
        return {**tensors, "log_std": torch.full(shape, start.log_std, dtype=dtype)}

    def decide(
        self, params: Params, features: Tensor, account: Tensor, tradable: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        hidden = self._hidden("actor", params, self._base("actor", params, features), account)
        return self._last("actor", params, hidden), self._spread(params, hidden.detach())

    def sample(
        self, params: Params, features: Tensor, account: Tensor, noise: Tensor, valid: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Actions [P, K, A, D] for noise matrices E [P, K, A, H, D], and their log-probability [P, K, A]."""
        hidden = self._hidden("actor", params, self._base("actor", params, features), account)
        mean = self._last("actor", params, hidden)
        p, h, d = params["log_std"].shape
        matrices = params["log_std"].exp().view(p, 1, 1, h, d) * noise
        action = mean + (hidden.unsqueeze(-2) @ matrices).squeeze(-2)
        return action, GAUSSIAN.log_probability(action, mean, self._spread(params, hidden), valid)

    def _spread(self, params: Params, hidden: Tensor) -> Tensor:
        """Log standard deviation of actions [P, K, A, D], from hidden [P, K, A, H]."""
        p, h, d = params["log_std"].shape
        squares = hidden.square().reshape(p, -1, h)  # [P, K A, H]
        variance = torch.bmm(squares, (2 * params["log_std"]).exp()).view(*hidden.shape[:-1], d)
        return 0.5 * (variance + VARIANCE_FLOOR).log()


class StateNoise(Gaussian):
    """Gaussian with noise matrices that are kept for `interval` steps; 0: for the whole rollout."""

    def __init__(self, hidden: int, interval: int) -> None:
        self.hidden = hidden
        self.interval = interval

    def noise(self, shape: tuple[int, ...], source: RandomSource, dtype: torch.dtype) -> Steps:
        """Matrices [H, P, ..., hidden, D] for actions of shape [H, ..., D] in H steps; an interval is one step."""
        steps, *inner, size = shape
        interval = self.interval or steps
        matrices = source.normal((-(-steps // interval), *inner, self.hidden, size), dtype, dim=1)
        return ComputedSteps(steps, dtype, lambda step: matrices[step // interval])
