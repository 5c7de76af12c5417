"""Walk-forward folds: train on the past, select on the most recent bars, test on the bars that follow."""

from __future__ import annotations

from dataclasses import dataclass

from finrl_pod.data.splits import Span
from finrl_pod.errors import DataError


@dataclass(frozen=True)
class Fold:
    """Bars of one fold. number: from 1. The embargo bars before validation and before test belong to no span."""

    number: int
    train: Span
    validation: Span
    test: Span


def walk_forward_folds(
    first: int, start: int, last: int, folds: int, validation: int, embargo: int
) -> tuple[Fold, ...]:
    """Cut bars `start` to `last` into `folds` consecutive test spans, each with the bars before it to train on.

    Test spans have equal length (to one bar) and leave no gap. Fold k validates on `validation` bars before its test
    and trains on all bars from `first` up to there. `embargo` bars are left out after training and after validation:
    rewards of the last decisions reach into them (purging), and features move slowly (embargo).

    Raises DataError for fewer than one fold, tests of fewer than two bars, and a first fold without training bars.
    """
    if folds < 1:
        raise DataError(f"a walk-forward needs at least 1 fold, got {folds}")
    if embargo < 0 or validation < 1:
        raise DataError(
            f"a fold needs at least 1 validation bar and an embargo of at least 0, got {validation} and {embargo}"
        )
    bars = last - start + 1
    if bars < 2 * folds:
        raise DataError(f"{bars} bars cannot be cut into {folds} tests of at least two bars; use fewer folds")
    edges = [start + round(k * bars / folds) for k in range(folds + 1)]
    made = []
    for k in range(folds):
        validated = Span(edges[k] - embargo - validation, edges[k] - embargo - 1)
        trained = Span(first, validated.first - embargo - 1)
        if trained.last < trained.first:
            raise DataError(
                f"fold {k + 1} has no bars to train on: {edges[k] - first} bars before its test are fewer than "
                f"{validation} of validation and two embargoes of {embargo}; start later or use a shorter validation"
            )
        made.append(Fold(k + 1, trained, validated, Span(edges[k], edges[k + 1] - 1)))
    return tuple(made)
