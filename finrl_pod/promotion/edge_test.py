"""The test of a champion's edge: one test of its active returns in test and validation with a known size.

Both periods carry information about the same edge, so they are combined instead of tested one after the other:

    Z = (sqrt(n) z + sqrt(m / 2) z') / sqrt(n + m / 2)

z is the z-score of the mean active return on the n bars of test, which were not used for selection. z' is that of the
m bars of validation after selection: the normal quantile of the probability that selection alone, among trials without
an edge, reaches the champion's z-score (`selection_null`). Without an edge z and z' are independent standard normal
variables, and so is Z (weighted inverse normal method, Liptak 1958). Optimal weights of two periods are the square
roots of their lengths; validation counts half its length, which costs 1.5% of the signal and limits the effect of
trials that were never recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from finrl_pod.evaluate.mean_test import mean_z_score, upper_tail
from finrl_pod.evaluate.selection_null import (
    DRAWS,
    Selection,
    effective_trials,
    selected_z_scores,
    selection_p_value,
)
from finrl_pod.types import Floats

VALIDATION_PRECISION = 0.5  # information of a bar of validation relative to one of test
_NORMAL = NormalDist()


@dataclass(frozen=True)
class SelectedPeriod:
    """The period on which a champion was selected.

    active: [T], its active returns there. trials: [T, N], those of the trials. members: of the ensemble. selections:
    number of independent selections of which this champion may be the best, 1 for a single run.
    """

    active: Floats
    trials: Floats
    members: int = 1
    selection: Selection = "best"
    selections: float = 1.0


@dataclass(frozen=True)
class EdgeTest:
    """Result of the test. p_value: one-sided, of z_score, under no edge.

    test, validation: z-scores of the periods, validation before and validation_selected after selection is accounted
    for; None without a validation period. expected_from_selection: z-score that selection alone reaches on average.
    effective_trials: number of independent trials whose best does so. validation_weight: of validation_selected in
    z_score. selections: number of independent selections that validation_selected accounts for.
    """

    p_value: float
    z_score: float
    test: float
    validation: float | None = None
    validation_selected: float | None = None
    expected_from_selection: float | None = None
    effective_trials: float | None = None
    validation_weight: float = 0.0
    selections: float = 1.0


def edge_test(test: Floats, validation: SelectedPeriod | None, *, seed: int = 0, draws: int = DRAWS) -> EdgeTest:
    """Test whether a champion's mean active return is positive.

    test: [T], its active returns on bars that were not used for selection. validation: None if there is no other
    period. draws: of the selection without an edge. Raises InputError for fewer than 20 returns in a period, and
    for constant returns or returns that are not finite.
    """
    z_test = mean_z_score(test)
    if validation is None:
        return EdgeTest(upper_tail(z_test), z_test, z_test)
    z_validation = mean_z_score(validation.active)
    null = selected_z_scores(validation.trials, validation.members, validation.selection, seed=seed, draws=draws)
    z_selected = selected_z_score(z_validation, null, validation.selections)
    weight = validation_weight(len(test), len(validation.active))
    combined = math.sqrt(1 - weight**2) * z_test + weight * z_selected
    return EdgeTest(
        upper_tail(combined),
        combined,
        z_test,
        z_validation,
        z_selected,
        float(null.mean()),
        effective_trials(null),
        weight,
        max(validation.selections, 1.0),
    )


def selected_z_score(z_score: float, null: Floats, selections: float = 1.0) -> float:
    """Z-score after selection: the normal quantile of 1 - `selection_p_value`."""
    p_value = selection_p_value(z_score, null, selections)
    smallest = 1 / (1 + len(null))  # as far from 1 as from 0, so that the quantile is finite
    return -_NORMAL.inv_cdf(min(p_value, 1 - smallest))


def validation_weight(test: int, validation: int) -> float:
    """Weight of validation in the combined z-score, from the numbers of bars; that of test is sqrt(1 - weight^2)."""
    return math.sqrt(VALIDATION_PRECISION * validation / (test + VALIDATION_PRECISION * validation))
