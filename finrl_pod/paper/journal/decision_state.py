"""State that decisions leave in the journal: virtual holdings, the account of the base, and the active return."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

StrategyState = Mapping[str, Any]  # JSON values of `MandatedStrategy.state`


@dataclass(frozen=True)
class ActiveReturn:
    """Log return of own equity less the base growth over `bars` sessions, at most a year.

    lower, level: lower edge of the band of the backtest and its probability; None without a band. left: the value is
    below the edge.
    """

    bars: int
    value: float
    lower: float | None
    level: float | None
    left: bool


@dataclass(frozen=True)
class BaseAccount:
    """The base account after a decision.

    time: last bar. started: first bar. growth: value of an account that started with 1. held, target: weights by
    symbol; the target is bought in the next auction, None keeps the holdings. strategy: virtual holdings of the base.
    """

    time: str
    started: str
    growth: float
    held: Mapping[str, float]
    target: Mapping[str, float] | None
    strategy: StrategyState | None
    active_return: ActiveReturn | None = None


@dataclass(frozen=True)
class DecisionState:
    """State that a decision leaves for the next one: virtual holdings of the strategy, and the account of its base."""

    strategy: StrategyState | None = None
    base: BaseAccount | None = None

    def encode(self) -> str | None:
        """JSON for the journal; None for an empty state."""
        return None if self == DecisionState() else json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def decode(cls, content: str) -> DecisionState:
        """Read the JSON of `encode`. Raises ValueError for other content."""
        from pydantic import TypeAdapter

        return TypeAdapter(cls).validate_json(content)
