"""Base of policy networks of one's own: what remains to write is the weights, the scores and the value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch

from finrl_pod.rl.networks.policies import DEFAULT_INIT, PolicyInit, PolicyOutput, PolicySpec
from finrl_pod.types import Tensor


class BasePolicy(ABC):
    """A Gaussian policy whose standard deviation does not depend on the state; implements `policies.Policy`.

    Subclasses define `weights`, `mean` and `value`. Every tensor of `params` has a leading dimension P: the members of
    a population are one batch, and none may read another's numbers. discrete: True if `mean` returns the logits of
    choices.
    """

    discrete: ClassVar[bool] = False

    def __init__(self, spec: PolicySpec) -> None:
        """spec: numbers of assets, features and actions, and the sizes of hidden layers."""
        self.spec, self.width = spec, max(spec.hidden) + spec.assets + 1

    @abstractmethod
    def weights(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Initial weights of one member by name, float32, drawn from the generator. Weight decay acts on `w`, `*_w`."""

    @abstractmethod
    def mean(self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None) -> Tensor:
        """Mean scores [P, K, A, D]; features: [P, K, N, F], account: [P, K, A, own], tradable: [P, K, N] or None."""

    @abstractmethod
    def value(self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None) -> Tensor:
        """Values [P, K, A], arguments as in `mean`."""

    def init(
        self, generator: torch.Generator, dtype: torch.dtype, start: PolicyInit = DEFAULT_INIT
    ) -> dict[str, Tensor]:
        """Initial tensors of one member: `weights`, and the logarithm of the standard deviation."""
        tensors = {name: weight.to(dtype) for name, weight in self.weights(generator).items()}
        if self.spec.action != "discrete":
            tensors["log_std"] = torch.full((self.spec.action_size,), start.log_std, dtype=dtype)
        return tensors

    def decide(
        self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Mean scores and their log standard deviation [P, D]; [P, 0] if actions are discrete."""
        mean = self.mean(params, features, account, tradable)
        spread = params["log_std"] if "log_std" in params else mean.new_empty(mean.shape[0], 0)
        return mean, spread

    def forward(
        self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None
    ) -> PolicyOutput:
        """Mean scores, their log standard deviation, and values."""
        mean, log_std = self.decide(params, features, account, tradable)
        return PolicyOutput(mean, log_std, self.value(params, features, account, tradable))
