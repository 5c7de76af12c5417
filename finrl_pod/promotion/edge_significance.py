"""The test of a champion's edge: mean active return and alpha, each tested on test and validation with a known size.

An edge must be shown twice over the same base. The mean active return shows that the champion earned more; alpha, the
active return less beta times the base, shows that it earned more than its market risk explains. The p-value is the
larger of the two (an intersection-union test, Berger 1982: its size is at most that of either).

For each of the two, both periods carry information about the same edge, so they are combined:

    Z = (sqrt(n) z + sqrt(m / 2) z') / sqrt(n + m / 2)

z is the z-score of the mean on the n bars of test, which were not used for selection. z' is that of the m bars of
validation after selection: the normal quantile of the probability that selection alone, among trials without an edge,
reaches the champion's z-score (`selection_null`). Without an edge z and z' are independent standard normal variables,
and so is Z (weighted inverse normal method, Liptak 1958). Optimal weights of two periods are the square roots of their
lengths; validation counts half its length, which costs 1.5% of the signal and limits the effect of trials that were
never recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from finrl_pod.evaluate.mean_significance import MAX_Z_SCORE, REGRESSION, alpha_series, mean_z_score, upper_tail
from finrl_pod.evaluate.metrics import RISK_EPSILON
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
class ActivePeriod:
    """A champion in one period. active: [T] active returns. base: [T] returns of the base in excess of cash."""

    active: Floats
    base: Floats


@dataclass(frozen=True)
class SelectedPeriod:
    """The period on which a champion was selected.

    active, base: as in `ActivePeriod`. trials: active returns [T, N] of the trials. members: number of members of the
    ensemble. selections: number of independent selections of which this champion may be the best, 1 for a single run.
    """

    active: Floats
    base: Floats
    trials: Floats
    members: int = 1
    selection: Selection = "best"
    selections: float = 1.0


@dataclass(frozen=True)
class CombinedTest:
    """Test of one mean, active return or alpha. p_value: one-sided, of z_score, under no edge.

    test, validation: z-scores of the periods, validation before and validation_selected after selection is accounted
    for; None without a validation period. expected_from_selection: z-score that selection alone reaches on average.
    effective_trials: number of independent trials whose best does so.
    """

    p_value: float
    z_score: float
    test: float
    validation: float | None = None
    validation_selected: float | None = None
    expected_from_selection: float | None = None
    effective_trials: float | None = None


@dataclass(frozen=True)
class EdgeTest:
    """Result of both tests. beta: slope of the account's returns on the base's on test, 1 for the base itself.

    validation_weight: weight of validation_selected in each z_score. selections: number of independent selections that
    validation_selected accounts for.
    """

    active: CombinedTest
    alpha: CombinedTest
    beta: float
    validation_weight: float = 0.0
    selections: float = 1.0

    @property
    def p_value(self) -> float:
        """The larger of the two p-values."""
        return max(self.active.p_value, self.alpha.p_value)


def edge_test(test: ActivePeriod, validation: SelectedPeriod | None, *, seed: int = 0, draws: int = DRAWS) -> EdgeTest:
    """Test whether a champion's mean active return and its alpha are positive.

    test: the champion on bars that were not used for selection. validation: None if there is no other period; for
    alpha, the returns of the champion and of every trial are replaced by their alphas before the selection is repeated.
    draws: number of selections without an edge. Raises InputError for fewer than 20 returns in a period, and for
    returns that are not finite or that differ from the base's by a constant other than 0.
    """
    if _is_zero(test.active):  # whatever the champion did on validation
        none = _combined(-MAX_Z_SCORE, None, 0.0)
        return EdgeTest(none, none, 1.0)
    test_alpha = alpha_series(test.active, test.base)
    weight, selections = 0.0, 1.0
    active_validation = alpha_validation = None
    if validation is not None:
        weight = validation_weight(len(test.active), len(validation.active))
        selections = max(validation.selections, 1.0)
        active_validation = _validation(validation.active, validation.trials, validation, 1, seed, draws)
        own = alpha_series(validation.active, validation.base).values
        trials = alpha_series(finite_trials(validation.trials), validation.base).values
        alpha_validation = _validation(own, trials, validation, REGRESSION, seed, draws)
    return EdgeTest(
        _combined(_z_score(test.active), active_validation, weight),
        _combined(_z_score(test_alpha.values, REGRESSION), alpha_validation, weight),
        1.0 + float(test_alpha.beta),
        weight,
        selections,
    )


@dataclass(frozen=True)
class _Validation:
    """z-score on validation, before and after selection, and the null distribution of selection."""

    z_score: float
    selected: float
    null: Floats


def _validation(
    values: Floats, trials: Floats, period: SelectedPeriod, parameters: int, seed: int, draws: int
) -> _Validation:
    z_score = _z_score(values, parameters)
    null = selected_z_scores(trials, period.members, period.selection, seed=seed, draws=draws)
    return _Validation(z_score, selected_z_score(z_score, null, period.selections), null)


def _combined(z_test: float, validation: _Validation | None, weight: float) -> CombinedTest:
    if validation is None:
        return CombinedTest(upper_tail(z_test), z_test, z_test)
    z_score = math.sqrt(1 - weight**2) * z_test + weight * validation.selected
    return CombinedTest(
        upper_tail(z_score),
        z_score,
        z_test,
        validation.z_score,
        validation.selected,
        float(validation.null.mean()),
        effective_trials(validation.null),
    )


def _z_score(values: Floats, parameters: int = 1) -> float:
    """`mean_z_score`; its lowest value for a series that is 0 throughout, of an account that equals its base."""
    return -MAX_Z_SCORE if _is_zero(values) else mean_z_score(values, parameters)


def _is_zero(values: Floats) -> bool:
    """Whether all values are 0, up to rounding errors."""
    return len(values) > 0 and float(np.abs(values).max()) <= RISK_EPSILON


def finite_trials(trials: Floats) -> Floats:
    """The trials [T, N] whose returns are all finite."""
    return trials[:, np.isfinite(trials).all(0)]


def selected_z_score(z_score: float, null: Floats, selections: float = 1.0) -> float:
    """Z-score after selection: the normal quantile of 1 - `selection_p_value`."""
    p_value = selection_p_value(z_score, null, selections)
    smallest = 1 / (1 + len(null))  # as far from 1 as from 0, so that the quantile is finite
    return -_NORMAL.inv_cdf(min(p_value, 1 - smallest))


def validation_weight(test: int, validation: int) -> float:
    """Weight of validation in the combined z-score, from the numbers of bars; that of test is sqrt(1 - weight^2)."""
    return math.sqrt(VALIDATION_PRECISION * validation / (test + VALIDATION_PRECISION * validation))
