"""Agents with a linear policy that is solved instead of trained (`rl.acting.closed_form`): the same for every seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Unpack

import torch

from finrl_pod.market.protocols import MarketVecEnv
from finrl_pod.random import generators
from finrl_pod.rl.algorithms.base import Algorithm, Metrics, Population
from finrl_pod.rl.experience.rollout import RolloutCollector
from finrl_pod.rl.networks.policies import PolicySpec, make_policy, with_start
from finrl_pod.rl.optimisation.optimiser import CRITIC_PREFIXES, Parameters
from finrl_pod.rl.optimisation.train_state import RateFactor
from finrl_pod.settings.algorithm_configs import ClosedFormConfig
from finrl_pod.types import Observation, Tensor


class ClosedForm(Algorithm):
    """P members with the same solved weights. An iteration changes nothing and steps no environment."""

    MEMBER_SETTINGS: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, spec: PolicySpec, env: MarketVecEnv, config: ClosedFormConfig, **population: Unpack[Population]
    ) -> None:
        self.spec = spec
        self.env = env
        self.config = config
        self.dtype = population["dtype"]
        self.policy = make_policy(spec)
        self.settings = {}
        members = population["members"]
        self.alive = torch.ones(len(members), dtype=torch.bool, device=env.device)
        initial = [self.policy.init(generator, self.dtype) for generator in generators(0, members, "initial weights")]
        actor = [
            {name: x for name, x in tensors.items() if not name.startswith(CRITIC_PREFIXES)}
            for tensors in with_start(initial, population["start"])
        ]
        self.parameters = Parameters(actor, env.device)

    @property
    def steps_per_iteration(self) -> int:
        return 1

    def iterate(self, collector: RolloutCollector, rate_factor: RateFactor) -> Metrics:  # noqa: ARG002
        return {"reward": torch.zeros(len(self.alive))}

    @torch.no_grad()
    def greedy(self, observation: Observation) -> Tensor:
        bar, account = observation
        p, groups = bar.shape
        market = self.env.market
        account = account.view(p, groups, -1, account.shape[-1]).to(self.dtype)
        mean = self.policy.mean(self.weights(), market.features[bar].to(self.dtype), account, market.tradable[bar])
        return mean.reshape(p, -1, mean.shape[-1])

    def weights(self) -> dict[str, Tensor]:
        return self.parameters.detached()

    def member(self, p: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return self.parameters.member(p), {}

    def load_member(self, p: int, weights: Mapping[str, Tensor], training_state: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        self.parameters.load(p, weights)
