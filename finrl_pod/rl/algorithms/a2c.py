"""Advantage actor-critic (Mnih et al. 2016), synchronous, for P members; and the base of custom on-policy algorithms.

A2C is PPO with one epoch over the whole rollout (Huang et al. 2022, arXiv:2205.09123): at the policy that collected the
data every probability ratio is 1, nothing is clipped, and ratio x advantage has the same gradient as
log-probability x advantage. Advantages are not standardised; the default optimiser is Adam, where the paper uses
RMSProp.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from finrl_pod.errors import ConfigError
from finrl_pod.rl.algorithms.base import Metrics
from finrl_pod.rl.algorithms.ppo import PPO, ROLLOUT_SETTINGS, explained_variance, flatten
from finrl_pod.rl.experience import Rollout, to_items
from finrl_pod.rl.optimisation.optimiser import RateFactor
from finrl_pod.settings.algorithm_configs import A2CConfig, OnPolicyConfig
from finrl_pod.types import Tensor

NO_CLIP = 1e9


class A2C(PPO):
    """A2C of P members: each iteration is a short rollout and one gradient step on all of it."""

    MEMBER_SETTINGS: ClassVar[tuple[str, ...]] = ROLLOUT_SETTINGS

    @property
    def minibatches(self) -> int:
        return 1

    @property
    def gradient_steps(self) -> int:
        return 1

    @property
    def clip(self) -> Tensor:
        """[P], larger than any probability ratio."""
        return torch.full_like(self.settings["learning_rate"], NO_CLIP)

    def update(self, rollout: Rollout, learning_rate_factor: RateFactor = 1.0) -> Metrics:
        """One gradient step on the rollout; returns diagnostics, [P] each."""
        values, advantage, target = self._advantages(rollout)  # [H, P, G, A] each
        data = flatten(rollout, advantage, target)  # [P, I, ...] each
        rate = self.settings["learning_rate"] * learning_rate_factor
        _, _, policy_loss, value_loss, norm = self._step(data, rate, self.alive)
        return {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "grad_norm": norm,
            "explained_variance": explained_variance(to_items(values), data[-1]),
            "entropy": self.entropy(data),
            "reward": rollout.reward.mean(dim=(0, 2, 3)),
        }


class Batch(NamedTuple):
    """The items of a rollout: P members, I items (bars of groups), A accounts that share a bar.

    bar: [P, I] int64; account: [P, I, A, own]; action: [P, I, A, D]; log_probability: [P, I, A], when it was collected.
    advantage, returns: [P, I, A], generalised advantages, and advantage + value: with gae_lambda = 1 the discounted
    rewards to the end of the rollout plus the value of the state there.
    """

    bar: Tensor
    account: Tensor
    action: Tensor
    log_probability: Tensor
    advantage: Tensor
    returns: Tensor


class Evaluation(NamedTuple):
    """A batch under the current parameters: log_probability, value: [P, I, A]; entropy: [P]."""

    log_probability: Tensor
    value: Tensor
    entropy: Tensor


@dataclass(frozen=True)
class LossConfig(OnPolicyConfig):
    """Settings of a `LossAlgorithm` that declares none: the defaults of A2C."""

    horizon: int = A2CConfig.horizon
    gae_lambda: float = A2CConfig.gae_lambda


class LossAlgorithm(A2C):
    """An on-policy algorithm of P members: each iteration is one rollout and one gradient step on `loss`.

    Collecting, advantages, clipping of gradients, optimisers, checkpoints and populations are inherited. Config: its
    settings, a subclass of `OnPolicyConfig`. settings[name]: [P], settings that may differ between members: the
    settings of A2C, and every number with decimals that Config adds, such as `huber: float = 1.0`.
    """

    Config: ClassVar[type[OnPolicyConfig]] = LossConfig

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        base_fields = {field.name for field in dataclasses.fields(LossConfig)}
        own = (field for field in dataclasses.fields(cls.Config) if field.name not in base_fields)
        cls.MEMBER_SETTINGS = (*A2C.MEMBER_SETTINGS, *(field.name for field in own if field.type in (float, "float")))

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """Loss [P] of a batch, to be minimised; the loss of a member must not depend on other members."""

    def evaluate(self, batch: Batch) -> Evaluation:
        """Log-probabilities, values and entropy under the current parameters, differentiable."""
        views = self.parameters.views
        valid = self.valid_scores(batch.bar)
        mean, log_std = self._decide(views, batch.bar, batch.account)
        return Evaluation(
            self.distribution.log_probability(batch.action, mean, log_std, valid),
            self._value(views, batch.bar, batch.account),
            self.distribution.entropy(mean, log_std, valid),
        )

    def _loss(self, chunk: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        batch = Batch(*chunk)
        loss = self.loss(batch)
        members = batch.bar.shape[0]
        if not isinstance(loss, torch.Tensor) or loss.shape != (members,):
            shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise ConfigError(
                f"loss() of {type(self).__name__} must return one number a member, [{members}], got {shape}"
            )
        nothing = torch.zeros_like(loss.detach())
        return loss, torch.stack([nothing, nothing, loss.detach(), nothing])
