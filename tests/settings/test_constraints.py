"""Ranges hold what their words say, to the very ends, and a value out of them is one sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from finrl_pod.errors import ConfigError
from finrl_pod.settings.constraints import (
    ABOVE_AND_FINITE,
    ABOVE_ZERO,
    FINITE,
    SHARE,
    Range,
    above_to,
    at_least,
    between,
    check_ranges,
    check_value,
    from_to_below,
)

TINY = 5e-324


@dataclass
class Settings:
    cost: float = 10.0
    steps: int = 3


@pytest.mark.parametrize(
    ("allowed", "words", "good", "bad"),
    [
        (at_least(1), "1 or more", (1, 10**20), (0, math.inf)),
        (between(0, 0.5), "0 to 0.5", (0, 0.5), (-TINY, 0.500001)),
        (from_to_below(0, 10_000), "0 or more and below 10,000", (0, 9_999.9), (-TINY, 10_000)),
        (above_to(0, 1), "above 0 and 1 at most", (TINY, 1), (0, 1.000001)),
        (ABOVE_ZERO, "above 0", (TINY, math.inf), (0, -1)),
        (ABOVE_AND_FINITE, "above 0 and finite", (TINY, 1e308), (0, math.inf)),
        (FINITE, "a finite number", (-1e308, 0), (math.inf, -math.inf)),
        (SHARE, "0 to 1", (0, 1), (-TINY, 1.000001)),
    ],
)
def test_what_a_range_holds(allowed: Range, words: str, good: tuple[float, ...], bad: tuple[float, ...]) -> None:
    assert allowed.words == words
    assert all(allowed.holds(x) for x in good)
    assert not any(allowed.holds(x) for x in (*bad, math.nan))


def test_the_sentence_names_the_rule_the_value_and_the_default() -> None:
    ranges = {"cost": from_to_below(0, 10_000), "steps": at_least(1)}
    check_ranges("environment", Settings(), ranges)
    with pytest.raises(ConfigError) as caught:
        check_ranges("environment", Settings(cost=-1.0, steps=0), ranges)
    assert str(caught.value) == (
        "environment.cost is out of its range, got -1.0: it must be 0 or more and below 10,000; its default is 10.0"
    )
    with pytest.raises(ConfigError, match=r"^agent\.steps is out of its range, got 0\.5: it must be 1 or more"):
        check_value("agent.", Settings(), "steps", 0.5, ranges["steps"])
