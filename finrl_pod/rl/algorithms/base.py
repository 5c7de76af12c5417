"""Bases of all algorithms: the interface to the learner, and the settings, random sources and state that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypedDict, Unpack

import torch

from finrl_pod.errors import ConfigError, RunError
from finrl_pod.native.philox import random_source
from finrl_pod.random import RandomSource, RandomState
from finrl_pod.rl.acting import Actor, MeanActor
from finrl_pod.rl.experience import RolloutCollector
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.rl.optimisation.optimiser import RateFactor, TrainState
from finrl_pod.settings.algorithm_configs import AgentConfig, TrainedAgentConfig
from finrl_pod.settings.constraints import check_setting
from finrl_pod.types import Tensor

Metrics = dict[str, Tensor]
COMMON_MEMBER_SETTINGS = ("learning_rate", "gamma")  # of every algorithm
MIN_REWARD_STD = 1e-8  # below it rewards count as constant


class Algorithm(ABC):
    """P members, each with its own settings, trained in one program.

    settings: name -> [P]. MEMBER_SETTINGS: names of the settings that may differ between members. alive: [P] bool,
    False for a member whose loss became NaN or infinite.
    """

    MEMBER_SETTINGS: ClassVar[tuple[str, ...]]
    config: AgentConfig
    spec: PolicySpec
    settings: dict[str, Tensor]
    alive: Tensor

    @classmethod
    def make_actor(cls, spec: PolicySpec) -> Actor:
        """Decides with weights of the algorithm, in training and elsewhere."""
        return MeanActor(spec)

    @property
    def actor(self) -> Actor:
        """Decides with `weights`."""
        return self.make_actor(self.spec)

    @property
    @abstractmethod
    def steps_per_iteration(self) -> int:
        """Steps of every environment in one iteration."""

    @abstractmethod
    def iterate(self, collector: RolloutCollector, rate_factor: RateFactor) -> Metrics:
        """Collect, then learn; returns metrics [P], "reward" among them. rate_factor: factor of the learning rates."""

    @abstractmethod
    def greedy(self, observation: Any) -> Tensor:
        """Actions [P, E, D] without exploration for an observation of the environment."""

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """Weights of `actor`: name -> [P, ...], detached views of the trained parameters."""

    @abstractmethod
    def member(self, p: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Copies of the weights of a member and of its remaining training state.

        The second holds optimiser moments, critics, target networks, temperatures and normalisers, but no random
        generators, accounts or replay buffers: those belong to the slot.
        """

    @abstractmethod
    def load_member(self, p: int, weights: Mapping[str, Tensor], training_state: Mapping[str, Tensor]) -> None:
        """Overwrite a member with the state of another."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the weights of a member, to check whether a saved agent fits."""
        return {name: tuple(x.shape[1:]) for name, x in self.weights().items()}

    def set_age(self, p: int, samples: int) -> None:  # noqa: B027  optional
        """Set the age of a member: samples since its weights were new. Exploration schedules depend on it."""

    def restart_slot(self, p: int) -> None:  # noqa: B027  optional
        """Declare the agent of slot p new: it warms up again, whatever the replay buffer of the slot contains."""

    def generators(self) -> list[RandomState]:
        """All random generators in a fixed order, as saved in checkpoints."""
        return []

    @property
    def slot_items(self) -> int:
        """Capacity of the replay buffer in items, 0 if there is none."""
        return 0

    def slot_state(self, since: int = 0) -> dict[str, Tensor]:  # noqa: ARG002
        """State of the slots, not of the agents: "counts" and the items of the buffer [P, n, ...], oldest first.

        since: skip the first that many items ever written, to save only new ones. Empty without a buffer.
        """
        return {}

    def load_slot_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore `slot_state`. Raises RunError if it does not fit."""
        if state:
            raise RunError(f"{self.config.algorithm} has no state between iterations, got {min(state)}")


class Population(TypedDict):
    """Members of an algorithm, by which their random generators are keyed, and how they differ from the config.

    hyperparameters: values of MEMBER_SETTINGS for each member. start: solved weights [F] or [P, F] to train from,
    towards which weights decay.
    """

    seed: int
    members: Sequence[int]
    hyperparameters: Sequence[Mapping[str, float]] | None
    dtype: torch.dtype
    start: Tensor | None


class TrainedAlgorithm(Algorithm):
    """Base of algorithms that learn by gradient steps. reward_scale: [P], 0 until the first rewards set it."""

    def __init__(
        self,
        spec: PolicySpec,
        config: TrainedAgentConfig,
        device: torch.device | str,
        *,
        seed: int,
        members: Sequence[int],
        hyperparameters: Sequence[Mapping[str, float]] | None,
        dtype: torch.dtype,
        start: Tensor | None,
    ) -> None:
        """Arguments as in `Population`. Raises ConfigError for unknown or invalid hyperparameters."""
        self.spec = spec
        self.config = config
        self.dtype = dtype
        self.device = torch.device(device)
        self.start = start
        self.seed = seed
        self.member_ids = tuple(members)
        self.members = len(members)
        self.settings = self._member_settings(hyperparameters)
        self.reward_scale = torch.zeros(self.members, dtype=dtype, device=device)
        self._noises = self._source("actions")

    def _source(self, purpose: str) -> RandomSource:
        return random_source(self.seed, self.member_ids, purpose, self.device)

    def _all_alive(self) -> Tensor:
        return torch.ones(self.members, dtype=torch.bool, device=self.device)

    def _member_settings(self, hyperparameters: Sequence[Mapping[str, float]] | None) -> dict[str, Tensor]:
        """Settings of all members as [P] tensors; missing hyperparameters come from the config."""
        config = self.config
        if hyperparameters is None:
            hyperparameters = [{}] * self.members
        if len(hyperparameters) != self.members:
            raise ConfigError(
                f"hyperparameters must be given for each of the {self.members} members, got {len(hyperparameters)}"
            )
        for values in hyperparameters:
            if unknown := set(values) - set(self.MEMBER_SETTINGS):
                names = ", ".join(self.MEMBER_SETTINGS)
                raise ConfigError(f"{config.algorithm} has no hyperparameter {min(unknown)!r}; it has {names}")
        settings = {}
        for name in self.MEMBER_SETTINGS:
            column = [float(values.get(name, getattr(config, name))) for values in hyperparameters]
            for value in column:
                check_setting("agent.", config, name, value)
            settings[name] = torch.tensor(column, dtype=self.dtype, device=self.device)
        return settings


class TrainStateAlgorithm(TrainedAlgorithm):
    """Base of algorithms whose networks are parts of a `TrainState`. acting_part: name of the network that acts."""

    acting_part = "actor"

    def __init__(
        self, spec: PolicySpec, config: TrainedAgentConfig, device: torch.device | str, **population: Unpack[Population]
    ) -> None:
        super().__init__(spec, config, device, **population)
        is_anchored = self.start is not None
        self.train_state = TrainState(self.settings, self._all_alive(), config.weight_decay, is_anchored=is_anchored)

    @property
    def alive(self) -> Tensor:  # type: ignore[override]
        return self.train_state.alive

    def weights(self) -> dict[str, Tensor]:
        return self.train_state.detached(self.acting_part)

    def member(self, p: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        training_state = {"reward_scale": self.reward_scale[p].cpu().clone(), **self.train_state.member(p)}
        return self.train_state.parts[self.acting_part].parameters.member(p), training_state

    def load_member(self, p: int, weights: Mapping[str, Tensor], training_state: Mapping[str, Tensor]) -> None:
        self.train_state.load(p, training_state)
        self.train_state.parts[self.acting_part].parameters.load(p, weights)
        self.reward_scale[p] = training_state["reward_scale"]


def spread_of_rewards(reward: Tensor) -> Tensor:
    """Standard deviation [P] of the rewards [H, P, G, A] of a rollout; 0 for a single reward."""
    is_single = reward.numel() == reward.shape[1]
    return torch.zeros_like(reward[0, :, 0, 0]) if is_single else reward.std(dim=(0, 2, 3))


def scale_of_rewards(spread: Tensor) -> Tensor:
    """Factor [P] that scales rewards of standard deviation `spread` [P] to 1; 1 for constant rewards."""
    return torch.where(spread > MIN_REWARD_STD, 1 / spread.clamp(min=MIN_REWARD_STD), 1.0)
