"""Decisions of trained agents as pure functions of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from finrl_pod.rl.networks.distributions import distribution_of
from finrl_pod.rl.networks.lookback import make_lookback_encoder
from finrl_pod.rl.networks.policies import PolicySpec, make_policy
from finrl_pod.rl.optimisation.normalisation import MEAN, VARIANCE, normalised
from finrl_pod.types import Tensor


class Actor(Protocol):
    """A trained agent's decisions as a pure function; backtests and paper accounts run it."""

    spec: PolicySpec

    def action(
        self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None
    ) -> Tensor:
        """Actions [P, K, A, D] without exploration, as the environment takes them.

        features: [P, K, N, F]; account: [P, K, A, 1 + N]; tradable: [P, K, N] bool, None if all assets are. With an
        encoder features [P, K, B, N, F] and tradable [P, K, B, N] of the last B <= L bars, the decision bar last.
        """
        ...


class MeanActor:
    """Acts by the mean of a Gaussian policy, or by its most likely choice."""

    def __init__(self, spec: PolicySpec) -> None:
        self.spec, self.policy, self.encoder = spec, make_policy(spec), make_lookback_encoder(spec)

    def action(
        self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None
    ) -> Tensor:
        """[P, K, A, D] scores, or choices [P, K, A, 1]."""
        if MEAN in params:  # trained on rows normalised by running statistics
            account = normalised(account, params[MEAN], params[VARIANCE]).to(account.dtype)
        if self.encoder is not None:
            features, tradable = self.encoder.join_windows(params, features, tradable)
        mean = self.policy.mean(params, features, account, tradable)
        return distribution_of(self.spec.action).best(mean)
