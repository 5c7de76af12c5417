"""What the loss of a policy gradient may gain beside its own terms: the H-term and the bonus for diversity."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from finrl_pod.agents import OnPolicyConfig
from finrl_pod.rl.distribution import distribution_of
from finrl_pod.rl.diversity import Views, bonus, categorical_kl, gaussian_kl, neighbours
from finrl_pod.rl.h_term import HTerm
from finrl_pod.rl.networks import PolicySpec
from finrl_pod.rl.parameters import Parameters
from finrl_pod.streams import generators
from finrl_pod.types import Tensor

DIVERSITY_PART = 8  # of a minibatch: one in so many states is enough to see how two members differ
# Mean scores [P, K, A, D] and their log standard deviation, by weights, in days [P, K] and accounts [P, K, A, 1 + N].
Decide = Callable[[Views, Tensor, Tensor], tuple[Tensor, Tensor]]


class Additions:
    """Their gradient for P members. h_term: None where its weight is 0 for all; `diverse`: whether the bonus is on."""

    def __init__(
        self,
        settings: dict[str, Tensor],
        parameters: Parameters,
        decide: Decide,
        action: str,
        h_term: HTerm | None,
        diverse: bool,
    ) -> None:
        self.settings, self.parameters, self.decide = settings, parameters, decide
        self.distribution = distribution_of(action)
        self.divergence = categorical_kl if action == "discrete" else gaussian_kl
        self.h_term, self.diverse = h_term, diverse

    @classmethod
    def of(
        cls,
        config: OnPolicyConfig,
        settings: dict[str, Tensor],
        parameters: Parameters,
        decide: Decide,
        spec: PolicySpec,
        seed: int,
        members: Sequence[int],
    ) -> Additions | None:
        """Those that the settings turn on, None where none is."""
        diverse = len(members) > 1 and bool(settings["diversity"].any())
        h_term, flat = None, parameters.flat
        if settings["h_term"].any():
            streams = generators(seed, members, "h-term", flat.device)
            h_term = HTerm(config, spec, streams, flat.dtype, flat.device)
        if h_term is None and not diverse:
            return None
        return cls(settings, parameters, decide, spec.action, h_term, diverse)

    def gradient(self, day: Tensor, account: Tensor, alive: Tensor) -> Tensor:
        """[P, D]. day [P, K], account [P, K, A, 1 + N]: states to be learned from; alive: [P] bool."""
        views = self.parameters.views
        loss = torch.zeros_like(self.settings["diversity"])

        def log_chance(day: Tensor, account: Tensor, action: Tensor) -> Tensor:
            return self.distribution.log_probability(action, *self.decide(views, day, account))

        if self.h_term is not None:
            loss = loss + self.settings["h_term"] * self.h_term.energy(log_chance, self.settings["discount"])
        if self.diverse:
            few = max(1, day.shape[1] // DIVERSITY_PART)
            seen = (day[:, :few], account[:, :few])
            sound = alive & torch.isfinite(self.parameters.flat).all(1)
            others = neighbours(sound.tolist())
            loss = loss - self.settings["diversity"] * bonus(
                views, lambda params: self.decide(params, *seen)[0], others, self.divergence
            )
        return self.parameters.gradient(loss.sum(), partial=True)
