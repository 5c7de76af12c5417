"""One rule of the gate: a value, a limit, whether it is met, and that in words."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from finrl_pod.errors import InputError


@dataclass(frozen=True)
class Rule:
    """value: what was reached, None where it could not be computed (then it is not met). sentence: in words."""

    name: str
    value: float | None
    limit: float
    passed: bool
    sentence: str


def rule_on(
    name: str,
    value: Callable[[], float],
    limit: float,
    passes: Callable[[float], bool],
    words: Callable[[float], str],
    how: str,
) -> Rule:
    """A rule on one statistic; what it refuses to be computed on is told instead of its value."""
    try:
        x = value()
    except InputError as error:
        return Rule(name, None, limit, passed=False, sentence=f"{spoken(name)} cannot be computed: {error}")
    passed = bool(passes(x))
    met = "as asked for" if passed else "and has to be"
    return Rule(name, x, limit, passed, f"{words(x)}, {met} {how} {limit:.4g}")


def spoken(name: str) -> str:
    """A name as sentences have it."""
    return name.replace("_", " ")


def number(x: float) -> float | None:
    """None for what is no finite number."""
    return float(x) if math.isfinite(x) else None
