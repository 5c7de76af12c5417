"""Walk-forward: the bars of each fold. Train on what is past, choose on what came last, test on what comes next."""

from __future__ import annotations

from dataclasses import dataclass

from finrl_pod.data.splits import Span
from finrl_pod.errors import DataError


@dataclass(frozen=True)
class Fold:
    """number: from 1. `embargo` bars before validation and before test belong to none."""

    number: int
    train: Span
    validation: Span
    test: Span


def walk_forward(first: int, start: int, last: int, folds: int, validation: int, embargo: int) -> tuple[Fold, ...]:
    """Cut the bars start to last into `folds` tests of equal length (to one bar), each with the past before it.

    Fold k trains on all bars from `first` on, but for the `validation` bars before its test, which choose its
    champion, and `embargo` bars after each of both: what a decision earns may reach so far ahead (the purge), and what
    is known then moves on slowly (the embargo). Tests follow one another without a gap. Raises DataError for less than
    one fold, tests of fewer than two bars, or a first fold without bars to train on.
    """
    if folds < 1:
        raise DataError(f"a walk-forward needs 1 fold at least, got {folds}")
    if embargo < 0 or validation < 1:
        raise DataError(f"a fold needs bars to choose on and an embargo of 0 or more, got {validation} and {embargo}")
    bars = last - start + 1
    if bars < 2 * folds:
        raise DataError(f"{bars} bars cannot be cut into {folds} tests of two bars or more: take fewer folds")
    edges = [start + round(k * bars / folds) for k in range(folds + 1)]
    made = []
    for k in range(folds):
        chosen = Span(edges[k] - embargo - validation, edges[k] - embargo - 1)
        trained = Span(first, chosen.first - embargo - 1)
        if trained.last < trained.first:
            raise DataError(
                f"fold {k + 1} has no bars to train on: {edges[k] - first} bars before its test are fewer than the "
                f"{validation} of validation and two embargoes of {embargo}; start later or validate on fewer"
            )
        made.append(Fold(k + 1, trained, chosen, Span(edges[k], edges[k + 1] - 1)))
    return tuple(made)
