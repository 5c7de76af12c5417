"""Generalised state-dependent exploration (gSDE), Raffin et al. 2021, arXiv:2005.05719, for MLP policies.

Instead of fresh noise at every step, actions are perturbed by a function of the state that changes every few steps.
With z(s) the last hidden layer of the actor and E a matrix of standard normal numbers,

    action = mean(s) + z(s) (exp(log_std) * E),   so that   action | s ~ N(mean(s), z(s)^2 exp(2 log_std) + epsilon).

While E is kept, equal states give equal actions. As in the paper, the gradient of log_std stops at z.
"""

from __future__ import annotations

import torch

from finrl_pod.random import RandomSource
from finrl_pod.rl.networks.distributions import GAUSSIAN, Gaussian
from finrl_pod.rl.networks.layers import Params
from finrl_pod.rl.networks.policies import DEFAULT_INIT, MlpPolicy, PolicyInit
from finrl_pod.types import Tensor

VARIANCE_FLOOR = 1e-6


class StateNoisePolicy(MlpPolicy):
    """MLP policy with a matrix log_std [H, D] for each member, H units of the last hidden layer."""

    def init(self, generator: torch.Generator, dtype: torch.dtype, start: PolicyInit = DEFAULT_INIT) -> Params:
        tensors = super().init(generator, dtype, start)
        shape = (self.spec.hidden[-1], self.spec.action_size)
        return {**tensors, "log_std": torch.full(shape, start.log_std, dtype=dtype)}

    def decide(
        self,
        params: Params,
        features: Tensor,
        account: Tensor,
        tradable: Tensor | None,  # noqa: ARG002  features of assets that are not tradable are 0
    ) -> tuple[Tensor, Tensor]:
        hidden = self._hidden("actor", params, features, account)
        return self._last("actor", params, hidden), self._spread(params, hidden.detach())

    def sample(
        self,
        params: Params,
        features: Tensor,
        account: Tensor,
        noise: Tensor,
        valid: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Actions [P, K, A, D] for noise matrices E [P, K, A, H, D], and their log-probability [P, K, A]."""
        hidden = self._hidden("actor", params, features, account)
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

    def noise(self, shape: tuple[int, ...], source: RandomSource, dtype: torch.dtype) -> Tensor:
        """Matrices [H, P, ..., hidden, D] for actions of shape [H, ..., D] in H steps."""
        steps, *inner, size = shape
        interval = self.interval or steps
        matrices = super().noise((-(-steps // interval), *inner, self.hidden, size), source, dtype)
        return matrices.repeat_interleave(interval, 0)[:steps]
