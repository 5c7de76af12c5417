"""Base of the off-policy algorithms: collecting into a replay buffer, sampling from it, and saved state.

An iteration takes `horizon` steps in every environment and then `gradient_steps` updates, each on `batch_size`
transitions drawn for each member from its own generator.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Unpack

import torch

from finrl_pod.random import RandomState, generators, members_of
from finrl_pod.rl.algorithms.base import (
    COMMON_MEMBER_SETTINGS,
    Metrics,
    Population,
    TrainStateAlgorithm,
    scale_of_rewards,
)
from finrl_pod.rl.experience import Replay, RolloutCollector
from finrl_pod.rl.networks.inputs import ModelInput, ObservationAdapter
from finrl_pod.rl.optimisation.optimiser import RateFactor
from finrl_pod.settings.algorithm_configs import OffPolicyConfig
from finrl_pod.types import Tensor

PREFETCH = 64  # updates whose samples are gathered at once


class Batch(NamedTuple):
    """K items of A accounts for each member: action [P, K, A, ...], reward [P, K, A] (scaled), not_done [P, K, A].

    not_done: 1 where the next state has a value, 0 after a termination (1 after a truncation).
    """

    obs: ModelInput
    action: Tensor
    reward: Tensor
    not_done: Tensor
    next_obs: ModelInput


class OffPolicy(TrainStateAlgorithm):
    """Collects transitions and learns from a replay buffer. Subclasses define the networks, exploration and update."""

    MEMBER_SETTINGS: ClassVar[tuple[str, ...]] = (*COMMON_MEMBER_SETTINGS, "tau", "max_grad_norm")
    METRICS: ClassVar[tuple[str, ...]] = ("critic_loss", "value", "grad_norm")
    config: OffPolicyConfig
    action_shape: tuple[int, ...]  # of an action of one account in the buffer
    action_dtype: torch.dtype

    def __init__(
        self,
        adapter: ObservationAdapter,
        config: OffPolicyConfig,
        device: torch.device | str,
        **population: Unpack[Population],
    ) -> None:
        super().__init__(adapter.spec, config, device, **population)
        self.adapter = adapter
        self._has_reward_scale = False  # of all members
        self.updates = 0
        self.samples = 0  # samples collected so far in each slot
        # [P], samples since the weights were new, including the samples of ancestors
        self.ages = torch.zeros(self.members, dtype=torch.int64, device=self.device)
        self.slot_ages = [0] * self.members  # samples since a new agent took the slot
        self._choices = self._source("replay")
        self._update_noises = self._source("updates")
        self.items = max(1, config.batch_size // adapter.accounts)  # items of a batch, each with A transitions
        self._build(generators(self.seed, self.member_ids, "initial weights"))
        account = (adapter.accounts,)
        fields = {
            **adapter.item_fields,
            **{f"next_{name}": field for name, field in adapter.item_fields.items()},
            "action": (account + self.action_shape, self.action_dtype),
            "reward": (account, self.dtype),
            "terminated": (account, torch.bool),
        }
        self.replay = Replay(
            fields, self.members, config.buffer_size // adapter.accounts, self.device, accounts=adapter.accounts
        )

    # ------------------------------------------------------------------ defined by subclasses

    @abstractmethod
    def _build(self, generators: Sequence[torch.Generator]) -> None:
        """Add the trained networks. generators: one for each member, for initial weights."""

    @abstractmethod
    def _sample_action(self, items: Mapping[str, Tensor]) -> Tensor:
        """Actions [P, G, A, *action_shape] to collect with, exploration included."""

    @abstractmethod
    def _random_action(self, groups: int) -> Tensor:
        """Random actions [P, G, A, *action_shape], before learning starts."""

    @abstractmethod
    def _greedy_action(self, obs: ModelInput) -> Tensor:
        """Actions [P, K, A, *action_shape] without exploration."""

    @abstractmethod
    def _to_env(self, action: Tensor) -> Tensor:
        """Actions [P, G, A, *action_shape] -> [P, E, D] as the environment takes them."""

    @abstractmethod
    def _update(self, batch: Batch, noise: Tensor, factor: RateFactor) -> list[Tensor]:
        """One update of all networks; returns METRICS, [P] each. noise: [P, *_noise_shape], standard normal."""

    def _noise_shape(self) -> tuple[int, ...]:
        """Shape of the standard normal numbers needed for one update of a member; (0,) for none."""
        return (0,)

    # ------------------------------------------------------------------ an iteration

    @property
    def steps_per_iteration(self) -> int:
        return self.config.horizon

    def iterate(self, collector: RolloutCollector, rate_factor: RateFactor) -> Metrics:
        reward = self.collect(collector)
        nan_metric = torch.full((self.members,), torch.nan, dtype=self.dtype, device=self.device)
        metrics = dict.fromkeys(self.METRICS, nan_metric)
        warming = self.warming_up
        if len(warming) < self.members:
            states = {p: self.member(p) for p in warming}
            alive = self.alive.clone()
            metrics = self.learn(self.config.gradient_steps, rate_factor)
            for p, (weights, training_state) in states.items():  # an update is of all members
                self.load_member(p, weights, training_state)
                self.alive[p] = alive[p]
            if warming:
                places = torch.tensor(warming, device=self.device)
                metrics = {name: x.index_fill(0, places, torch.nan) for name, x in metrics.items()}
        return {"reward": reward, **metrics}

    @property
    def warming_up(self) -> list[int]:
        """Members that act at random and do not learn yet: fewer than `learning_starts` samples in their slot."""
        return [p for p, age in enumerate(self.slot_ages) if age < self.config.learning_starts]

    def set_age(self, p: int, samples: int) -> None:
        self.ages[p] = samples

    def restart_slot(self, p: int) -> None:
        self.slot_ages[p] = 0

    @torch.no_grad()
    def collect(self, collector: RolloutCollector) -> Tensor:
        """Collect `horizon` steps of every environment; returns the mean reward [P]."""
        total = torch.zeros(self.members, dtype=self.dtype, device=self.device)
        groups = self.adapter.groups
        accounts = self.adapter.accounts
        for _ in range(self.config.horizon):
            items = self.adapter.encode(collector.observation)
            action = self._explore(items)
            out = collector.env.step(self._to_env(action))
            shape = (self.members, groups, accounts)
            reward = out.reward.view(shape).to(self.dtype)
            self.replay.add(
                {
                    **items,
                    **{f"next_{name}": x for name, x in self.adapter.encode(out.final_observation).items()},
                    "action": action,
                    "reward": reward,
                    "terminated": out.terminated.view(shape),
                }
            )
            collector.observation = out.observation
            self.samples += groups * accounts
            self.ages += groups * accounts
            self.slot_ages = [age + groups * accounts for age in self.slot_ages]
            total += reward.mean((1, 2))
        return total / self.config.horizon

    def _explore(self, items: Mapping[str, Tensor]) -> Tensor:
        """Actions [P, G, A, *action_shape] to collect with: random ones of members that warm up."""
        warming = self.warming_up
        if not warming:
            return self._sample_action(items)
        generators = self._noises.members
        before = [generator.get_state() for generator in generators]
        random = self._random_action(self.adapter.groups)
        if len(warming) == self.members:
            return random
        # Each member draws from its generator only what it would draw alone.
        after = [generator.get_state() for generator in generators]
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)
        action = self._sample_action(items)
        for p in warming:
            generators[p].set_state(after[p])
            action[p] = random[p]
        return action

    def learn(self, updates: int, factor: RateFactor) -> dict[str, Tensor]:
        """Run `updates` updates on samples from the buffer; returns the mean of each metric."""
        self._fix_reward_scale()
        log: list[list[Tensor]] = []
        left = updates
        while left:
            batches = self._batches(min(left, PREFETCH))
            for batch, noise in batches:
                self.updates += 1
                log.append(self._update(batch, noise, factor))
            left -= len(batches)
        return {
            name: torch.stack(column).nanmean(0)
            for name, column in zip(self.METRICS, zip(*log, strict=True), strict=True)
        }

    def _batches(self, count: int) -> list[tuple[Batch, Tensor]]:
        """Samples and normal numbers for `count` updates."""
        data = self.replay.take(self._indices(count))  # [U, P, K, ...]
        scale = torch.where(self.reward_scale == 0, 1.0, self.reward_scale).view(1, -1, 1, 1)
        reward = data["reward"] * scale
        not_done = (~data["terminated"]).to(self.dtype)
        noises = self._update_noises.normal((count, *self._noise_shape()), self.dtype, dim=1)
        return [
            (
                Batch(
                    self.adapter.decode({name: data[name][u] for name in self.adapter.item_fields}),
                    data["action"][u],
                    reward[u],
                    not_done[u],
                    self.adapter.decode({name: data[f"next_{name}"][u] for name in self.adapter.item_fields}),
                ),
                noises[u],
            )
            for u in range(count)
        ]

    def _indices(self, count: int) -> Tensor:
        """Items of the buffer for `count` updates: [U, P, K]."""
        return self._choices.integers(self.replay.count, (count, self.items), dim=1)

    def _fix_reward_scale(self) -> None:
        """Set the reward scale from the buffer, once it holds a full batch; until then rewards are not scaled."""
        if self._has_reward_scale:
            return
        if self.config.scale_rewards:
            rewards = self.replay.data["reward"][:, : self.replay.count].flatten(1)
            if rewards.shape[1] < max(2, self.config.batch_size):
                return
            first = scale_of_rewards(rewards.std(1)).to(self.device)  # a shared buffer may be on another device
        else:
            first = torch.ones_like(self.reward_scale)
        self.reward_scale = torch.where(self.reward_scale == 0, first, self.reward_scale)
        self._has_reward_scale = True

    def _update_targets(self, steps: int) -> None:
        """Polyak update every `target_interval` steps. steps: updates so far of the networks that the targets track."""
        if steps % self.config.target_interval == 0:
            self.train_state.polyak_update()

    # ------------------------------------------------------------------ acting and state

    @torch.no_grad()
    def greedy(self, observation: Any) -> Tensor:
        return self._to_env(self._greedy_action(self.adapter.decode(self.adapter.encode(observation))))

    def load_member(self, p: int, weights: Mapping[str, Tensor], training_state: Mapping[str, Tensor]) -> None:
        super().load_member(p, weights, training_state)
        self._has_reward_scale = False

    def generators(self) -> list[RandomState]:
        return members_of(self._choices, self._noises, self._update_noises)

    @property
    def slot_items(self) -> int:
        return self.replay.capacity

    def slot_state(self, since: int = 0) -> dict[str, Tensor]:
        counts = torch.tensor([self.replay.written, self.samples, self.updates, *self.slot_ages])
        return {"counts": counts, **self.replay.latest(self.replay.written - since)}

    def load_slot_state(self, state: Mapping[str, Tensor]) -> None:
        item_count, samples, updates, *self.slot_ages = (int(x) for x in state["counts"])
        self.replay.load(state, item_count)
        self.samples = samples
        self.updates = updates
