"""Constraints of settings, and declarations inherited by subclasses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import pytest

from finrl_pod.errors import ConfigError
from finrl_pod.settings.constraints import (
    FINITE,
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_FINITE,
    Constraint,
    above_and_at_most,
    at_least,
    at_least_and_below,
    between,
    check_setting,
    check_settings,
    check_value,
    describe_settings,
    setting,
)

SMALLEST_FLOAT = 5e-324


@dataclass
class Settings:
    cost: float = setting(10.0, "cost of a trade", at_least_and_below(0, 10_000))
    steps: int = setting(3, "steps per episode", at_least(1))
    fill: Literal["next", "close"] = setting("next", "when orders fill")


@dataclass
class LongerSettings(Settings):
    steps: int = 30
    names: tuple[str, ...] = setting((), "names of features")


@pytest.mark.parametrize(
    ("constraint", "description", "good", "bad"),
    [
        (at_least(1), "1 or more", (1, 10**20), (0, math.inf)),
        (between(0, 0.5), "0 to 0.5", (0, 0.5), (-SMALLEST_FLOAT, 0.500001)),
        (at_least_and_below(0, 10_000), "0 or more and below 10,000", (0, 9_999.9), (-SMALLEST_FLOAT, 10_000)),
        (above_and_at_most(0, 1), "above 0 and at most 1", (SMALLEST_FLOAT, 1), (0, 1.000001)),
        (POSITIVE, "above 0", (SMALLEST_FLOAT, math.inf), (0, -1)),
        (POSITIVE_FINITE, "above 0 and finite", (SMALLEST_FLOAT, 1e308), (0, math.inf)),
        (NOT_NEGATIVE, "0 or more", (0, math.inf), (-SMALLEST_FLOAT,)),
        (FINITE, "a finite number", (-1e308, 0), (math.inf, -math.inf)),
        (FRACTION, "0 to 1", (0, 1), (-SMALLEST_FLOAT, 1.000001)),
    ],
)
def test_bounds_match_their_description(
    constraint: Constraint, description: str, good: tuple[float, ...], bad: tuple[float, ...]
) -> None:
    assert constraint.description == description
    assert all(constraint.check(x) for x in good)
    assert not any(constraint.check(x) for x in (*bad, math.nan))


def test_an_invalid_value_is_reported_with_constraint_and_default() -> None:
    check_settings("environment.", Settings())
    with pytest.raises(ConfigError) as excinfo:
        check_settings("environment.", Settings(cost=-1.0, steps=0))
    assert str(excinfo.value) == (
        "environment.cost is out of its range, got -1.0: it must be 0 or more and below 10,000; the default is 10.0"
    )
    with pytest.raises(ConfigError, match=r"^agent\.steps is out of its range, got 0\.5: it must be 1 or more"):
        check_setting("agent.", Settings(), "steps", 0.5)
    with pytest.raises(ConfigError, match=r"^agent\.steps is out of its range, got 9: it must be 1 to 8"):
        check_value("agent.", Settings(), "steps", 9, between(1, 8))


def test_a_subclass_overrides_the_default_and_inherits_comment_and_constraint() -> None:
    declared = describe_settings(LongerSettings)
    assert list(declared) == ["cost", "steps", "fill", "names"]
    steps = declared["steps"]
    assert (steps.type, steps.default, steps.comment) == ("int", 30, "steps per episode")
    assert steps.constraint is not None
    assert steps.constraint.description == "1 or more"
    assert declared["fill"].choices == ("next", "close")
    assert describe_settings(Settings)["steps"].default == 3
    with pytest.raises(ConfigError, match="steps is out of its range, got 0"):
        check_settings("", LongerSettings(steps=0))


def test_an_undeclared_field_is_an_error() -> None:
    @dataclass
    class Bare:
        rate: float = 0.5

    with pytest.raises(TypeError, match=r"Bare\.rate"):
        describe_settings(Bare)
