"""What the learner asks of an algorithm, whichever it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch

from finrl_pod.errors import ConfigError
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.rl.training.worker import Worker
from finrl_pod.settings.algorithm_configs import AgentConfig
from finrl_pod.settings.constraints import check_setting
from finrl_pod.types import Tensor

Metrics = dict[str, Tensor]
# What a member of every algorithm has of its own.
COMMON_MEMBER_SETTINGS = ("learning_rate", "gamma")  # of every algorithm
SAME = 1e-8  # a spread of rewards that is none


class Actor(Protocol):
    """A trained agent's decisions as a pure function: what a backtest and a paper account run."""

    spec: PolicySpec

    def action(
        self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None
    ) -> Tensor:
        """The action without exploration, as the environment takes it: [P, K, A, D].

        features: [P, K, N, F]; account: [P, K, A, 1 + N]; tradable: [P, K, N] bool, None when all are.
        """
        ...


class Algorithm(Protocol):
    """P members with settings of their own that learn in one program.

    settings: name -> [P]. alive: [P] bool, False for a member whose loss was no longer a number. actor: how its
    weights decide. MEMBER_SETTINGS: settings that may differ between members.
    """

    MEMBER_SETTINGS: ClassVar[tuple[str, ...]]
    spec: PolicySpec
    settings: dict[str, Tensor]

    @property
    def alive(self) -> Tensor:
        """[P] bool."""
        ...

    @property
    def actor(self) -> Actor:
        """Decides with `weights`, here and outside the environment."""
        ...

    @property
    def steps(self) -> int:
        """Steps of every environment that one iteration takes."""
        ...

    def iterate(self, worker: Worker, rate_factor: float) -> Metrics:
        """Collect, then learn. rate_factor: of the learning rates. Returns figures [P]; "reward" is among them."""
        ...

    def greedy(self, observation: Any) -> Tensor:
        """The action [P, E, D] without exploration, for an observation as the environment gives it."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """What `actor` decides with: name -> [P, ...], detached views of what is being trained."""
        ...

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of a member's weights, to see whether a saved agent fits."""
        ...

    def member(self, p: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Copies of what makes a member: its weights, and all else that learning goes on from.

        The second holds optimiser moments, critics, target networks, temperatures and normalisers; never random
        streams, accounts or the replay, which belong to the slot.
        """
        ...

    def load_member(self, p: int, weights: Mapping[str, Tensor], rest: Mapping[str, Tensor]) -> None:
        """Overwrite a member by another's."""
        ...

    def streams(self) -> list[torch.Generator]:
        """Every random stream, in a fixed order: an exact continuation restores them."""
        ...

    @property
    def slot_items(self) -> int:
        """Items of the replay, 0 where there is none."""
        ...

    def slot_state(self, since: int = 0) -> dict[str, Tensor]:
        """What belongs to the slots, not to the agents: "counts" and the replay's items [P, n, ...], oldest first.

        since: leaves out the first so many items ever written, to save what is new. Empty where there is no replay.
        """
        ...

    def load_slot_state(self, state: Mapping[str, Tensor]) -> None:
        """Back from `slot_state`. Raises RunError when it does not fit."""
        ...


def spread_of_rewards(reward: Tensor) -> Tensor:
    """Standard deviation [P] of a rollout's rewards [H, P, G, A]; 0 of a single one."""
    single = reward.numel() == reward.shape[1]
    return torch.zeros_like(reward[0, :, 0, 0]) if single else reward.std(dim=(0, 2, 3))


def scale_of_rewards(spread: Tensor) -> Tensor:
    """What makes rewards of this standard deviation [P] of order one; 1 where they are all the same."""
    return torch.where(spread > SAME, 1 / spread.clamp(min=SAME), 1.0)


def settings_of(
    each: Sequence[Mapping[str, float]] | None,
    config: AgentConfig,
    names: Sequence[str],
    members: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, Tensor]:
    """Every member's settings as [P] tensors; what a mapping leaves out comes from the config.

    Raises ConfigError for a setting that is unknown or out of its range, and for another number of members.
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
