"""Agents with a linear policy that is solved instead of trained (`rl.acting.closed_form`): the same for every seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from finrl_pod.market.protocols import MarketVecEnv
from finrl_pod.random import RandomState, generators
from finrl_pod.rl.acting.actor import MeanActor
from finrl_pod.rl.algorithms.base import Metrics
from finrl_pod.rl.experience.rollout_collector import RolloutCollector
from finrl_pod.rl.networks.policies import PolicySpec, make_policy
from finrl_pod.rl.networks.start import started
from finrl_pod.rl.optimisation.optimiser import CRITIC_PREFIXES, Parameters
from finrl_pod.rl.optimisation.train_state import RateFactor
from finrl_pod.settings.algorithm_configs import ClosedFormConfig
from finrl_pod.types import Observation, Tensor


class ClosedForm:
    """P members with the same solved weights. An iteration changes nothing and steps no environment."""

    MEMBER_SETTINGS: ClassVar[tuple[str, ...]] = ()
    steps_per_iteration = 1
    slot_items = 0

    def __init__(
        self,
        spec: PolicySpec,
        env: MarketVecEnv,
        config: ClosedFormConfig,
        start: Tensor,
        *,
        members: Sequence[int] = (0,),
        hyperparameters: Sequence[Mapping[str, float]] | None = None,  # noqa: ARG002  it has none
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """start: [F], or [P, F] for each member, of `solved_weights`."""
        self.spec, self.config, self.env, self.dtype = spec, config, env, dtype
        self.policy = make_policy(spec)
        self.settings: dict[str, Tensor] = {}
        self.alive = torch.ones(len(members), dtype=torch.bool, device=env.device)
        rows = started([self.policy.init(g, dtype) for g in generators(0, members, "initial weights")], start)
        actor = [{k: x for k, x in row.items() if not k.startswith(CRITIC_PREFIXES)} for row in rows]
        self.parameters = Parameters(actor, env.device)

    @property
    def actor(self) -> MeanActor:
        return MeanActor(self.spec)

    def iterate(self, collector: RolloutCollector, rate_factor: RateFactor) -> Metrics:  # noqa: ARG002
        return {"reward": torch.zeros(len(self.alive))}

    @torch.no_grad()
    def greedy(self, observation: Observation) -> Tensor:
        bar, account = observation
        p, groups = bar.shape
        market = self.env.market
        rows = account.view(p, groups, -1, account.shape[-1]).to(self.dtype)
        mean = self.policy.mean(self.weights(), market.features[bar].to(self.dtype), rows, market.tradable[bar])
        return mean.reshape(p, -1, mean.shape[-1])

    def weights(self) -> dict[str, Tensor]:
        return {name: view.detach() for name, view in self.parameters.views.items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(shape) for name, shape in self.parameters.shapes.items()}

    def member(self, p: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return self.parameters.member(p), {}

    def load_member(self, p: int, weights: Mapping[str, Tensor], rest: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        self.parameters.load(p, weights)

    def set_age(self, p: int, samples: int) -> None:
        pass

    def restart_slot(self, p: int) -> None:
        pass

    def generators(self) -> list[RandomState]:
        return []

    def slot_state(self, since: int = 0) -> dict[str, Tensor]:  # noqa: ARG002
        return {}

    def load_slot_state(self, state: Mapping[str, Tensor]) -> None:
        pass
