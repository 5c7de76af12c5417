"""Gaps, late starts and early ends, handled once: every per-ticker feature sees the ticker's own bars without holes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from finrl_pod.types import Bools, Floats


def over_own_bars(function: Callable[..., Floats], valid: Bools, *columns: Floats) -> Floats:
    """Apply `function` to columns whose valid rows are moved to the top, and put the result back in its bars.

    valid: [T, N] bool. columns: [T, N] float64 each. function: takes the moved columns, [T, N] with NaN below a
    column's last valid bar, and returns [T, N]. Returns [T, N], NaN where `valid` is False. Row i of a moved column
    is the ticker's i-th bar, whatever comes later, so a causal function stays causal; windows count own bars and
    skip gaps.
    """
    if valid.all():
        return function(*columns)
    order = np.argsort(~valid, axis=0, kind="stable")
    moved_valid = np.take_along_axis(valid, order, axis=0)
    moved = (np.where(moved_valid, np.take_along_axis(column, order, axis=0), np.nan) for column in columns)
    result = np.full(valid.shape, np.nan)
    np.put_along_axis(result, order, function(*moved), axis=0)
    result[~valid] = np.nan
    return result


def lag(values: Floats, bars: int) -> Floats:
    """values [T, ...] moved down by `bars` rows; NaN in the first ones."""
    result = np.full_like(values, np.nan)
    result[bars:] = values[: max(len(values) - bars, 0)]
    return result
