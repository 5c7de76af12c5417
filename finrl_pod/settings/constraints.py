"""Which values a setting may have, and the sentence for one that it may not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from finrl_pod.errors import ConfigError


@dataclass(frozen=True)
class Range:
    """holds: whether a value is in it. words: the rule, as a sentence says it behind "it must be"."""

    words: str
    holds: Callable[[Any], bool]


Ranges = Mapping[str, Range]


def at_least(least: float) -> Range:
    """least <= x < infinity."""
    return Range(f"{least:,} or more", lambda x: least <= x < math.inf)


def between(least: float, most: float) -> Range:
    """least <= x <= most."""
    return Range(f"{least:,} to {most:,}", lambda x: least <= x <= most)


def from_to_below(least: float, end: float) -> Range:
    """least <= x < end."""
    return Range(f"{least:,} or more and below {end:,}", lambda x: least <= x < end)


def above_to(end: float, most: float) -> Range:
    """end < x <= most."""
    return Range(f"above {end:,} and {most:,} at most", lambda x: end < x <= most)


ABOVE_ZERO = Range("above 0", lambda x: x > 0)  # infinity too, which lifts a limit
ABOVE_AND_FINITE = Range("above 0 and finite", lambda x: 0 < x < math.inf)
FINITE = Range("a finite number", math.isfinite)
SHARE = between(0, 1)


def check_ranges(section: str, config: object, ranges: Ranges) -> None:
    """Raises ConfigError for the first setting of a section that is out of its range."""
    for name, allowed in ranges.items():
        check_value(f"{section}.", config, name, getattr(config, name), allowed)


def check_value(prefix: str, config: object, name: str, value: object, allowed: Range) -> None:
    """The same for a value that may replace the config's. Names the rule, the value and the default.

    prefix: of the setting's name, with what parts them.
    """
    if not allowed.holds(value):
        usual = f"; its default is {kept!r}" if (kept := getattr(type(config), name, None)) is not None else ""
        raise ConfigError(f"{prefix}{name} is out of its range, got {value!r}: it must be {allowed.words}{usual}")
