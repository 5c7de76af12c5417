"""What the loss of a policy gradient may gain beside its own terms: the H-term and the bonus for diversity."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from finrl_pod.agents import OnPolicyConfig
from finrl_pod.rl.distribution import log_probability
from finrl_pod.rl.diversity import Views, bonus, neighbours
from finrl_pod.rl.h_term import HTerm
from finrl_pod.rl.parameters import Parameters
from finrl_pod.streams import generators
from finrl_pod.types import Tensor

DIVERSITY_PART = 8  # of a minibatch: one in so many states is enough to see how two members differ
# Mean scores [P, K, A, D] by weights, in days [P, K] and accounts [P, K, A, 1 + N].
Mean = Callable[[Views, Tensor, Tensor], Tensor]


class Additions:
    """The gradient of what is added. h_term: None where its weight is 0 for every member."""

    def __init__(self, settings: dict[str, Tensor], mean: Mean, parameters: Parameters, h_term: HTerm | None) -> None:
        self.settings, self.mean, self.parameters, self.h_term = settings, mean, parameters, h_term
        self._diverse = len(parameters.flat) > 1 and bool(settings["diversity"].any())

    @classmethod
    def of(
        cls,
        config: OnPolicyConfig,
        settings: dict[str, Tensor],
        mean: Mean,
        parameters: Parameters,
        sizes: tuple[int, int],
        seed: int,
        members: Sequence[int],
    ) -> Additions | None:
        """None where no member has any. sizes: of an account and of an action."""
        h_term, flat = None, parameters.flat
        if settings["h_term"].any():
            streams = generators(seed, members, "h-term", flat.device)
            h_term = HTerm(config, *sizes, streams, flat.dtype, flat.device)
        made = cls(settings, mean, parameters, h_term)
        return made if h_term is not None or made._diverse else None

    def gradient(self, day: Tensor, account: Tensor, alive: Tensor) -> Tensor:
        """[P, D]. day [P, K], account [P, K, A, 1 + N]: states to be learned from; alive: [P] bool."""
        views = self.parameters.views
        loss = torch.zeros_like(self.settings["diversity"])

        def log_chance(day: Tensor, account: Tensor, action: Tensor) -> Tensor:
            return log_probability(action, self.mean(views, day, account), views["log_std"])

        if self.h_term is not None:
            loss = loss + self.settings["h_term"] * self.h_term.energy(log_chance, self.settings["discount"])
        if self._diverse:
            few = max(1, day.shape[1] // DIVERSITY_PART)
            sound = alive & torch.isfinite(self.parameters.flat).all(1)
            more = bonus(
                views, lambda params: self.mean(params, day[:, :few], account[:, :few]), neighbours(sound.tolist())
            )
            loss = loss - self.settings["diversity"] * more
        return self.parameters.gradient(loss.sum(), partial=True)
