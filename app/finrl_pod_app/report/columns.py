"""Formats of numbers and names of strategies, shared by the terminal, the report and the dashboard."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from finrl_pod.evaluate.metrics import METRICS, OWNER_METRICS, PERCENT, Metric
from finrl_pod.user_files import is_file_reference, unpinned

if TYPE_CHECKING:
    from finrl_pod.promotion.verdict import Metrics

MISSING = "–"
CHAMPION = "champion"
SLOW_BASE = "mandate_at_tilt_zero"  # a name that only readers of the documentation know: labels say "base"
NARROW = 0.004  # width of an interval of returns
MOST_DIGITS = 4  # decimals of a return in percent


def metrics_of(strategies: Mapping[str, Metrics]) -> list[Metric]:
    """`METRICS`, and metrics of flows and taxes if a strategy has them."""
    return [*METRICS, *(metric for metric in OWNER_METRICS if any(metric.name in x for x in strategies.values()))]


def format_metric(metric: Metric, value: float | None) -> str:
    """The value of a metric in its unit, for a cell below its heading; a dash for None, NaN or infinity."""
    return (percent if metric.unit is PERCENT else number)(value, metric.unit.digits)


def metric_text(metric: Metric, value: float | None) -> str:
    """The value of a metric with its unit, for running text: +1.2%, 0.85×; returns have a sign."""
    if metric.unit is PERCENT:
        return percent(value, metric.unit.digits, sign=True, unit=metric.unit.suffix)
    text = number(value, metric.unit.digits)
    return text if text == MISSING else f"{text}{metric.unit.suffix}"


def number(value: float | None, digits: int = 2, *, sign: bool = False) -> str:
    """1234.5 -> 1,234.50; a dash for None, NaN or infinity.

    Zero is never negative. sign: show the sign of positive numbers.
    """
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:{'+' if sign else ''}z,.{digits}f}"


def percent(value: float | None, digits: int = 1, *, sign: bool = False, unit: str = "") -> str:
    """A fraction in percent, formatted as by `number`: 0.012 -> 1.2. unit: behind it, such as "%"."""
    text = number(None if value is None else 100 * value, digits, sign=sign)
    return text if text == MISSING else f"{text}{unit}"


def return_interval(low: float | None, high: float | None) -> str:
    """An interval of returns in percent, such as -0.3% to +0.9%.

    With more decimals if it is narrow, or if an end would round to 0: its side decides whether 0 lies inside.
    """
    if low is None or high is None:
        return f"{MISSING} to {MISSING}"
    digits = 1 if high - low >= NARROW else 2
    while digits < MOST_DIGITS and any(end and not percent(end, digits).strip("+-0.") for end in (low, high)):
        digits += 1
    return " to ".join(percent(end, digits, sign=True, unit="%") for end in (low, high))


def champion_first(names: Iterable[str]) -> list[str]:
    """The names with the champion moved to the front, the others in their given order."""
    return sorted(names, key=lambda name: name != CHAMPION)


def in_sentence(name: str) -> str:
    """A strategy in running text: the champion, the index, equal weight."""
    text = display_name(name)
    return f"the {text}" if name in (CHAMPION, "agent", "index", SLOW_BASE) else text


def display_name(name: str) -> str:
    """Display name of a strategy or setting: equal_weight -> equal weight, momentum_12_1 -> momentum 12-1.

    Of a reference to a file, the reference without its hash.
    """
    return unpinned(name) if is_file_reference(name) else re.sub(r"(?<=\d)_(?=\d)", "-", name).replace("_", " ")


def champion_text(champion: str, members: Sequence[str]) -> str:
    """A champion in headings: the number of its agents, or the id of a single one."""
    return f"ensemble of {len(members)} agents" if len(members) > 1 else champion


def diversity_of(roots: Iterable[str], mean_correlation: float | None) -> str:
    """How different the members of a champion are, to end a sentence."""
    roots = sorted(set(roots))
    plural = "s" if len(roots) > 1 else ""
    text = f" from {len(roots)} root{plural} (first ancestor{plural} {', '.join(roots)})"
    if mean_correlation is None:
        return text
    return f"{text}; the mean correlation of their active returns on validation is {number(mean_correlation)}"
