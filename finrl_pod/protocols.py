"""Interfaces between packages. Each is small, and a contract test runs over every implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import pandas as pd
import torch

from finrl_pod.types import EnvStep, Floats, JointObservation, JointStep, Panel, Positions, Tensor, Window


@runtime_checkable
class DataSource(Protocol):
    """A provider of historical prices."""

    name: str

    def fetch(self, symbols: tuple[str, ...], start: pd.Timestamp, end: pd.Timestamp, bar: str) -> Panel:
        """Bars of `symbols` with start <= time <= end. Raises FetchError naming the missing symbols."""


@runtime_checkable
class VecEnv(Protocol):
    """A batched environment: all that a Learner needs. Implement this to train on your own environment.

    members, envs: P x E environments are stepped together, E for each of P population members. member_ids: [P], ids
    that key the random generators, usually range(P).
    observation_size: S, numbers in an observation row. action_size: D, numbers in an action.
    action_kind: "direct" for actions in [-1, 1], "discrete" for choices (D = 1); market environments also have
    "softmax" for scores that become portfolio weights, "tilt" for scores that tilt the base of a mandate. actions:
    number of choices, 0 unless discrete.
    device: device of all tensors.
    """

    members: int
    envs: int
    member_ids: tuple[int, ...]
    observation_size: int
    action_size: int
    action_kind: str
    actions: int
    device: torch.device

    def reset(self, seed: int) -> Any:
        """Start new episodes; returns the observation [P, E, S]. Equal seeds give equal episodes."""

    def step(self, action: Tensor) -> EnvStep:
        """Step all environments by `action` [P, E, D]; finished ones are reset in the same call."""


@runtime_checkable
class ResumableVecEnv(VecEnv, Protocol):
    """A VecEnv whose episodes can be saved and continued exactly; `Learner.checkpoint` needs one."""

    def checkpoint(self) -> Mapping[str, Tensor]:
        """State of all episodes: name -> tensor."""

    def resume(self, state: Mapping[str, Tensor]) -> Any:
        """Restore a state of `checkpoint` after `reset` with the same seed; returns the current observation."""


@runtime_checkable
class CentralCriticVecEnv(VecEnv, Protocol):
    """A VecEnv whose rows end in numbers that critics may read in training, and actors may not.

    critic_only: how many of the `observation_size` numbers those are.
    """

    critic_only: int


@runtime_checkable
class JointVecEnv(CentralCriticVecEnv, Protocol):
    """A VecEnv of the agents of markets: each market has M agents, and its step needs an action of each.

    agents: M, 0 if each environment has an agent of its own. is_shared: whether one network acts for all agents. The
    agents of a market are then the environments e M to e M + M - 1 of one member, else environment e of the members p M
    to p M + M - 1.
    """

    agents: int
    is_shared: bool


@runtime_checkable
class MultiAgentVecEnv(Protocol):
    """P x E markets in each of which M agents act at once. `rl.multi_agent.views` presents them as VecEnvs.

    agents: M. observation_size: S, numbers that an agent observes. state_size: C, numbers of the whole state. members,
    envs, member_ids, action_size, action_kind, actions, device: attributes of VecEnv, equal for all agents.
    """

    members: int
    envs: int
    agents: int
    member_ids: tuple[int, ...]
    observation_size: int
    state_size: int
    action_size: int
    action_kind: str
    actions: int
    device: torch.device

    def reset(self, seed: int) -> JointObservation:
        """Start new episodes. Equal seeds give equal episodes."""

    def step(self, action: Tensor) -> JointStep:
        """Step all markets by `action` [P, E, M, D]; finished ones are reset in the same call."""


@runtime_checkable
class ResumableMultiAgentVecEnv(MultiAgentVecEnv, Protocol):
    """A MultiAgentVecEnv whose episodes can be saved and continued exactly."""

    def checkpoint(self) -> Mapping[str, Tensor]:
        """State of all episodes: name -> tensor."""

    def resume(self, state: Mapping[str, Tensor]) -> JointObservation:
        """Restore a state of `checkpoint` after `reset` with the same seed; returns the current observation."""


@runtime_checkable
class PooledVecEnv(VecEnv, Protocol):
    """A VecEnv stepped by worker processes.

    worker_restarts: workers replaced so far.
    """

    @property
    def worker_restarts(self) -> int: ...

    def episodes(self) -> Sequence[Any]:
        """Episodes finished since the last call."""

    def close(self) -> None:
        """Stop the workers."""


@runtime_checkable
class Strategy(Protocol):
    """Computes target weights from past prices. Backtest, audit and paper trading all call it.

    Optional attributes: `lookback`, trailing bars of the window that it needs, all when absent; `feature_lookback`,
    trailing bars of the features that it needs, 1 when absent; `orders`, stops and limits of backtests
    (`evaluate.intrabar_orders.OrderRules`); `decision_bars(times)`, [T] bool, the bars at which it may trade an account
    with holdings, so that a backtest skips the others.
    """

    @property
    def name(self) -> str:
        """Name in results and messages."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Features to pass in `Window.features`, in this order; empty for none."""

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        """Target weights [N] as fractions of equity (the rest is cash), or None to leave the positions unchanged."""
