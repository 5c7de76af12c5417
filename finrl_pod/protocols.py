"""The ports between rooms. Each is small and has a contract test that runs over every implementation."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import pandas as pd

from finrl_pod.types import EnvStep, Floats, Panel, Positions, Tensor, Window


@runtime_checkable
class DataSource(Protocol):
    """Where prices come from."""

    name: str

    def fetch(self, symbols: tuple[str, ...], start: pd.Timestamp, end: pd.Timestamp, bar: str) -> Panel:
        """Bars of `symbols` with start <= time <= end. Raises FetchError naming the symbols that are missing."""
        ...


@runtime_checkable
class VecEnv(Protocol):
    """P x E environments stepped together on torch tensors, with auto-reset in the same step."""

    members: int
    envs: int
    action_size: int

    def reset(self, seed: int) -> Any:
        """The first observation. The same seed gives the same episodes."""
        ...

    def step(self, action: Tensor) -> EnvStep:
        """action: [P, E, action_size] float."""
        ...


@runtime_checkable
class Strategy(Protocol):
    """Decides target weights from the past alone. Backtest, audit and paper trading all drive it through this.

    An optional attribute `lookback` (bars) says how many trailing rows of the window it needs; without it, all.
    """

    @property
    def name(self) -> str:
        """Names the strategy in results and messages."""
        ...

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Features of the market that it wants in `Window.features`, in this order; empty for none."""
        ...

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        """[N] weights of equity (cash is the rest), or None to leave the account as it is at this bar."""
        ...
