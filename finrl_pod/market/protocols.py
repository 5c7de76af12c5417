"""Interfaces that depend on the rules of a market: environments on it, and strategies with a mandate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from finrl_pod.protocols import ResumableVecEnv, Strategy, VecEnv
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import EnvStep, MarketTensor, Observation, Tensor

StrategyState = Mapping[str, Any]  # JSON values of `MandatedStrategy.state`


@runtime_checkable
class MarketVecEnv(ResumableVecEnv, Protocol):
    """A VecEnv on a market of N assets, with E = G * A accounts per member.

    Observations are (bar, account): the A accounts of each of G groups share a bar. Its features are read from the
    market table instead of being copied into every row.
    mandate: bounds on holdings and trades, or None. extras: numbers of an account that are observed after cash and
    holdings, per asset and per account (`market.account_extras`). groups, accounts: G and A. episode_bars: bars of an
    episode. first, last: range of decision bars.
    """

    market: MarketTensor
    config: EnvironmentConfig
    mandate: MandateConfig | None
    extras: tuple[int, int]
    groups: int
    accounts: int
    episode_bars: int
    first: int
    last: int

    def reset(self, seed: int, *, stagger: bool = True) -> Observation:
        """Start new episodes; with `stagger` the first ones have random lengths: this spreads later resets."""

    def reuse_buffers(self, enabled: bool) -> None:
        """If True, step() alternates between two sets of output buffers; callers must copy what they keep."""


@runtime_checkable
class DifferentiableVecEnv(MarketVecEnv, Protocol):
    """A market environment whose rewards are differentiable with respect to earlier actions."""

    def step_differentiable(self, action: Tensor) -> EnvStep:
        """`step` that records gradients of rewards and accounts with respect to `action`."""

    def detach(self) -> None:
        """Cut the gradient graph: later steps have no derivative with respect to earlier actions."""


def group_shape(env: VecEnv) -> tuple[int, int, int]:
    """(P, G, A): members, groups that share a bar, accounts per group. Without a market each environment is a group."""
    return (env.members, env.groups, env.accounts) if isinstance(env, MarketVecEnv) else (env.members, env.envs, 1)


@runtime_checkable
class MandatedStrategy(Strategy, Protocol):
    """A strategy that may have a mandate. Its virtual holdings outlive the process."""

    @property
    def mandate(self) -> MandateConfig | None:
        """None if it trades without bounds."""

    def state(self) -> StrategyState | None:
        """What continues after a restart, such as virtual holdings, as plain JSON values; None without any."""

    def restore(self, state: StrategyState | None, symbols: Sequence[str]) -> None:
        """Continue from `state` with the symbols of the account; None resets it."""
