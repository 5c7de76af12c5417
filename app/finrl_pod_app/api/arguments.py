"""Checks of the arguments of the Python API. The command line checks its types itself."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

from finrl_pod.errors import InputError


def whole_number(name: str, value: Any, low: int, high: int | None = None) -> int:
    """An argument as int. Raises InputError unless it is a whole number from `low` to `high`, also of NumPy."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < low or (high is not None and number > high):
        range_text = f"of at least {low:,}" if high is None else f"from {low:,} to {high:,}"
        raise InputError(f"{name} must be a whole number {range_text}, got {value!r}")
    return number


def flag(name: str, value: Any) -> bool:
    """An argument as bool. Raises InputError for anything but True and False: "no" would count as true."""
    if value is True or value is False:
        return bool(value)
    raise InputError(f"{name} must be True or False, got {value!r}")


def number(name: str, value: Any) -> float:
    """An argument as float. Raises InputError unless it is a number, also of NumPy."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise InputError(f"{name} must be a number, got {value!r}")


def check_callback(callback: object) -> None:
    """Raises InputError for what is neither None nor can be called."""
    if not (callback is None or callable(callback)):
        raise InputError(f"callback must be a function of the learner and its metrics, got {callback!r}")


def as_path(value: object, rule: str) -> Path:
    """An argument as a path. Raises InputError with the rule for anything but a text or a path."""
    if isinstance(value, str | Path):
        return Path(value)
    value_text = repr(value) if value is None or isinstance(value, int | float) else type(value).__name__  # may be long
    raise InputError(f"{rule}, got {value_text}")
