"""Which values a member's setting may have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from finrl_pod.errors import ConfigError

Ranges = Mapping[str, Callable[[float], bool]]

# What a member of every algorithm has of its own.
COMMON: Ranges = {
    "learning_rate": lambda x: 0 < x <= 1,
    "discount": lambda x: 0 <= x <= 1,
}


def above_zero(x: float) -> bool:
    """x > 0, and a number."""
    return x > 0


def zero_or_more(x: float) -> bool:
    """0 <= x < infinity."""
    return 0 <= x < math.inf


def share(x: float) -> bool:
    """0 <= x <= 1."""
    return 0 <= x <= 1


def check_setting(ranges: Ranges, name: str, value: float) -> None:
    """Raises ConfigError for a member's setting that is out of its range."""
    if not ranges[name](value):
        raise ConfigError(f"agent.{name} is out of its range, got {value!r}; see its default")
