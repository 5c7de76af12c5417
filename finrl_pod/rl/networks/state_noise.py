"""Generalised state-dependent exploration (gSDE), Raffin et al. 2021, arXiv:2005.05719, for plain policies.

Noise is no number drawn anew at every step but a function of what the network sees, drawn anew every few steps: with
z(s) what the last hidden layer of the actor says and a matrix E of normal numbers,

    action = mean(s) + z(s) (exp(log_std) * E),   so that   action | s ~ N(mean(s), z(s)^2 exp(2 log_std) + epsilon).

The same state gives the same action as long as E lasts, and exploration is smooth where the policy is. As in the
paper, the features z learn from the mean alone: the spread's gradient stops at them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from finrl_pod.rl.networks.distributions import Gaussian, log_probability
from finrl_pod.rl.networks.policies import DEFAULT_INIT, MlpPolicy, PolicyInit
from finrl_pod.types import Tensor

VARIANCE_FLOOR = 1e-6


class StateNoisePolicy(MlpPolicy):
    """A plain policy whose log_std is a matrix [H, D] for each member, H units of the last hidden layer."""

    def init(self, stream: torch.Generator, dtype: torch.dtype, start: PolicyInit = DEFAULT_INIT) -> dict[str, Tensor]:
        tensors = super().init(stream, dtype, start)
        shape = (self.spec.hidden[-1], self.spec.action_size)
        return {**tensors, "log_std": torch.full(shape, start.log_std, dtype=dtype)}

    def decide(
        self,
        params: Mapping[str, Tensor],
        features: Tensor,
        account: Tensor,
        tradable: Tensor | None,  # noqa: ARG002  features of what is not tradable are zero already
    ) -> tuple[Tensor, Tensor]:
        hidden = self._hidden("actor", params, features, account)
        return self._last("actor", params, hidden), self._spread(params, hidden.detach())

    def sample(
        self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Actions [P, K, A, D] by matrices E [P, K, A, H, D], and their log-probability [P, K, A]."""
        hidden = self._hidden("actor", params, features, account)
        mean = self._last("actor", params, hidden)
        p, h, d = params["log_std"].shape
        matrices = params["log_std"].exp().view(p, 1, 1, h, d) * noise
        action = mean + (hidden.unsqueeze(-2) @ matrices).squeeze(-2)
        return action, log_probability(action, mean, self._spread(params, hidden))

    def _spread(self, params: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
        """Logarithm of the standard deviation of actions [P, K, A, D]: hidden [P, K, A, H]."""
        p, h, d = params["log_std"].shape
        squares = hidden.square().reshape(p, -1, h)  # [P, K A, H]
        variance = torch.bmm(squares, (2 * params["log_std"]).exp()).view(*hidden.shape[:-1], d)
        return 0.5 * (variance + VARIANCE_FLOOR).log()


class StateNoise(Gaussian):
    """Its noise is a matrix a state, kept for `interval` steps; 0: for all that are asked for at once."""

    def __init__(self, hidden: int, interval: int) -> None:
        self.hidden, self.interval = hidden, interval

    def noise(self, shape: tuple[int, ...], stream: torch.Generator, dtype: torch.dtype) -> Tensor:
        """shape: [H, ..., D] of actions in H steps -> matrices [H, ..., hidden, D]."""
        steps, *inner, size = shape
        lasts = self.interval or steps
        drawn = super().noise((-(-steps // lasts), *inner, self.hidden, size), stream, dtype)
        return drawn.repeat_interleave(lasts, 0)[:steps]
