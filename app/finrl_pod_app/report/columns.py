"""Formats of numbers and names of strategies, shared by the terminal, the report and the dashboard."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from finrl_pod.evaluate.metrics import PERCENT, Metric
from finrl_pod.user_files import is_file_reference, unpinned

MISSING = "–"
CHAMPION = "champion"
NARROW = 0.004  # width of an interval of returns
MOST_DIGITS = 4  # decimals of a return in percent


def format_metric(metric: Metric[Any], value: float | None) -> str:
    """The value of a metric in its unit, for a cell below its heading; a dash for None, NaN or infinity."""
    return (percent if metric.unit is PERCENT else number)(value, metric.unit.digits)


def metric_text(metric: Metric[Any], value: float | None) -> str:
    """The value of a metric with its unit, for running text: +1.2%, 0.85×; returns have a sign."""
    if metric.unit is PERCENT:
        return percent(value, metric.unit.digits, sign=True, unit=metric.unit.suffix)
    text = number(value, metric.unit.digits)
    return text if text == MISSING else f"{text}{metric.unit.suffix}"


def number(value: float | None, digits: int = 2, *, sign: bool = False) -> str:
    """1234.5 -> 1,234.50; a dash for None, NaN or infinity. Zero is never negative. sign: of positive numbers too."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:{'+' if sign else ''}z,.{digits}f}"


def percent(value: float | None, digits: int = 1, *, sign: bool = False, unit: str = "") -> str:
    """A fraction in percent, formatted as by `number`: 0.012 -> 1.2. unit: behind it, such as "%"."""
    text = number(None if value is None else 100 * value, digits, sign=sign)
    return text if text == MISSING else f"{text}{unit}"


def return_interval(low: float, high: float) -> str:
    """An interval of returns in percent, such as -0.3% to +0.9%.

    With more decimals if it is narrow, or if an end would round to 0, whose side decides whether 0 lies inside.
    """
    digits = 1 if high - low >= NARROW else 2
    while digits < MOST_DIGITS and any(end and not percent(end, digits).strip("+-0.") for end in (low, high)):
        digits += 1
    return " to ".join(percent(end, digits, sign=True, unit="%") for end in (low, high))


def with_side(text: str, value: float, unit: str = "") -> str:
    """The text of an end of an interval; of one that rounds to 0, its side: it decides whether 0 lies inside."""
    if value == 0 or text.strip("+-0.%"):
        return text
    return f"just {'below' if value < 0 else 'above'} 0{unit}"


# Bars of a report by their split, in headings and at the end of sentences; None: dates of the user's choice.
_PERIODS = {
    "train": ("training", "on the training period"),
    "validation": ("validation", "on the validation period"),
    "test": ("test", "on the test period"),
    "all": ("all bars", "on all bars"),
    None: ("chosen dates", "on the chosen dates"),
}


def period_words(document: Mapping[str, Any]) -> tuple[str, str]:
    """The bars of a report in headings, and as the end of a sentence: ("test", "on the test period")."""
    return ("in sample", "in sample") if document.get("in_sample") else _PERIODS[document.get("split", "test")]


def champion_first(names: Iterable[str]) -> list[str]:
    """The names with the champion moved to the front, the others in their given order."""
    return sorted(names, key=lambda name: name != CHAMPION)


def in_sentence(name: str) -> str:
    """A strategy in running text: the champion, the index, equal weight."""
    shown = display_name(name)
    return f"the {shown}" if name in (CHAMPION, "agent", "index", "mandate_at_tilt_zero") else shown


def display_name(name: str) -> str:
    """Display name of a strategy or setting: equal_weight -> equal weight, momentum_12_1 -> momentum 12-1.

    Of a reference to a file, the reference without its hash.
    """
    return unpinned(name) if is_file_reference(name) else re.sub(r"(?<=\d)_(?=\d)", "-", name).replace("_", " ")


def champion_text(champion: Mapping[str, Any]) -> str:
    """A champion in headings: the number of its agents, or the id of a single one."""
    members = champion.get("members") or ()
    return f"ensemble of {len(members)} agents" if len(members) > 1 else str(champion["id"])


def diversity_of(champion: Mapping[str, Any]) -> str:
    """How different a champion's members are, to end a sentence."""
    roots, correlation = set(champion["roots"]), champion["mean_correlation"]
    plural = "s" if len(roots) > 1 else ""
    text = f" from {len(roots)} root{plural} (first ancestor{plural} {', '.join(sorted(roots))})"
    if correlation is None:
        return text
    return f"{text}; the mean correlation of their active returns on validation is {number(correlation)}"
