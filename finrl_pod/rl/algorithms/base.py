"""Interface between the learner and the algorithms, and the settings and reward scale that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch

from finrl_pod.errors import ConfigError
from finrl_pod.random import RandomState
from finrl_pod.rl.acting.actor import Actor
from finrl_pod.rl.experience.rollout_collector import RolloutCollector
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.rl.optimisation.train_state import RateFactor
from finrl_pod.settings.algorithm_configs import AgentConfig
from finrl_pod.settings.constraints import check_setting
from finrl_pod.types import Tensor

Metrics = dict[str, Tensor]
COMMON_MEMBER_SETTINGS = ("learning_rate", "gamma")  # of every algorithm
MIN_REWARD_STD = 1e-8  # below it rewards count as constant


class Algorithm(Protocol):
    """P members, each with its own settings, trained in one program.

    settings: name -> [P]. MEMBER_SETTINGS: names of the settings that may differ between members.
    """

    MEMBER_SETTINGS: ClassVar[tuple[str, ...]]
    spec: PolicySpec
    settings: dict[str, Tensor]

    @property
    def alive(self) -> Tensor:
        """[P] bool, False for a member whose loss became NaN or infinite."""
        ...

    @property
    def actor(self) -> Actor:
        """Decides with `weights`, in training and elsewhere."""
        ...

    @property
    def steps_per_iteration(self) -> int:
        """Steps of every environment in one iteration."""
        ...

    def iterate(self, collector: RolloutCollector, rate_factor: RateFactor) -> Metrics:
        """Collect, then learn; returns metrics [P], "reward" among them. rate_factor: of the learning rates."""
        ...

    def greedy(self, observation: Any) -> Tensor:
        """Actions [P, E, D] without exploration for an observation of the environment."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """Weights of `actor`: name -> [P, ...], detached views of the trained parameters."""
        ...

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of a member's weights, to check whether a saved agent fits."""
        ...

    def member(self, p: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Copies of a member's weights and of its remaining training state.

        The second holds optimiser moments, critics, target networks, temperatures and normalisers, but no random
        generators, accounts or replay buffers: those belong to the slot.
        """
        ...

    def load_member(self, p: int, weights: Mapping[str, Tensor], rest: Mapping[str, Tensor]) -> None:
        """Overwrite a member with another's state."""
        ...

    def set_age(self, p: int, samples: int) -> None:
        """Set a member's age: samples since its weights were new, by which exploration schedules go."""
        ...

    def restart_slot(self, p: int) -> None:
        """Declare the agent of slot p new: it warms up again, whatever the slot's replay buffer holds."""
        ...

    def generators(self) -> list[RandomState]:
        """All random generators in a fixed order, as saved in checkpoints."""
        ...

    @property
    def slot_items(self) -> int:
        """Capacity of the replay buffer in items, 0 if there is none."""
        ...

    def slot_state(self, since: int = 0) -> dict[str, Tensor]:
        """State of the slots, not of the agents: "counts" and the buffer's items [P, n, ...], oldest first.

        since: skip the first that many items ever written, to save only new ones. Empty without a buffer.
        """
        ...

    def load_slot_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore `slot_state`. Raises RunError if it does not fit."""
        ...


def spread_of_rewards(reward: Tensor) -> Tensor:
    """Standard deviation [P] of a rollout's rewards [H, P, G, A]; 0 for a single reward."""
    single = reward.numel() == reward.shape[1]
    return torch.zeros_like(reward[0, :, 0, 0]) if single else reward.std(dim=(0, 2, 3))


def scale_of_rewards(spread: Tensor) -> Tensor:
    """Factor [P] that scales rewards of standard deviation `spread` [P] to 1; 1 for constant rewards."""
    return torch.where(spread > MIN_REWARD_STD, 1 / spread.clamp(min=MIN_REWARD_STD), 1.0)


def settings_of(
    each: Sequence[Mapping[str, float]] | None,
    config: AgentConfig,
    names: Sequence[str],
    members: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, Tensor]:
    """Settings of all members as [P] tensors; values missing in `each` come from the config.

    Raises ConfigError for unknown settings, values out of range, and a wrong number of members.
    """
    each = [{}] * members if each is None else each
    if len(each) != members:
        raise ConfigError(f"hyperparameters must be given for each of the {members} members, got {len(each)}")
    for values in each:
        if unknown := set(values) - set(names):
            raise ConfigError(f"{config.algorithm} has no hyperparameter {min(unknown)!r}; it has {', '.join(names)}")
    settings = {}
    for name in names:
        column = [float(values.get(name, getattr(config, name))) for values in each]
        for value in column:
            check_setting("agent.", config, name, value)
        settings[name] = torch.tensor(column, dtype=dtype, device=device)
    return settings
