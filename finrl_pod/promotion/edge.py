"""The edge of a champion on test: active return over its reference, alpha, and the case that the verdict states.

An edge must be shown twice over the base traded as slowly as the agents trade: by the mean active return, and by alpha,
the active return less beta times the base. The p-value is the larger of the two (an intersection-union test, Berger
1982). For each of the two, test and validation are combined (weighted inverse normal method, Liptak 1958):

    Z = (sqrt(n) z + sqrt(m / 2) z') / sqrt(n + m / 2)

z is the z-score of the mean on the n bars of test. z' is the z-score on the m bars of validation after selection: the
normal quantile of the probability that selection alone, among trials without an edge, reaches the z-score of the
champion. Without an edge Z is a standard normal variable. Validation counts half its length, which limits the effect of
trials that were never recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.arguments import check_arguments, numbers
from finrl_pod.errors import InputError
from finrl_pod.evaluate.active_management import LEVEL, annual_mean
from finrl_pod.evaluate.metrics import BARS_PER_YEAR, RISK_EPSILON, max_drawdown
from finrl_pod.evaluate.overfitting import DRAWS, Selection, effective_trials, selected_z_scores, selection_p_value
from finrl_pod.evaluate.significance import (
    MAX_Z_SCORE,
    REGRESSION,
    alpha_series,
    detectable_ratio,
    mean_z_score,
    upper_tail,
)
from finrl_pod.promotion.verdict import AccountRisk, Case, CombinedTest, Edge, EdgeTests, Estimate
from finrl_pod.settings.run import GateConfig
from finrl_pod.types import Floats

POWER = 0.8  # probability with which a test should show an edge
LARGEST_RATIO = 1.0  # a test that needs a larger information ratio for that power has too little data

VALIDATION_PRECISION = 0.5  # information of a bar of validation relative to one of test
_NORMAL = NormalDist()


@dataclass(frozen=True)
class ActivePeriod:
    """A champion in one period. active: [T] active returns. base: [T] returns of the base in excess of cash."""

    active: Floats
    base: Floats


@dataclass(frozen=True)
class SelectedPeriod(ActivePeriod):
    """The period on which a champion was selected.

    trials: active returns [T, N] of the trials. members: number of members of the ensemble. selections: number of
    independent selections of which this champion may be the best, 1 for a single run.
    """

    trials: Floats
    members: int = 1
    selection: Selection = "best"
    selections: float = 1.0


def edge_test(test: ActivePeriod, validation: SelectedPeriod | None, *, seed: int = 0, draws: int = DRAWS) -> EdgeTests:
    """Test whether the mean active return and the alpha of a champion are positive.

    test: the champion on bars that were not used for selection. validation: None if there is no other period; for
    alpha, the returns of the champion and of every trial are replaced by their alphas before the selection is repeated.
    draws: number of selections without an edge. Raises InputError for fewer than 20 returns in a period, and for
    returns that are not finite or that differ from the base by a constant other than 0.
    """
    if _is_zero(test.active):  # whatever the champion did on validation
        no_edge = _combine(-MAX_Z_SCORE, None, 0.0)
        return EdgeTests(active=no_edge, alpha=no_edge, beta=1.0)
    test_alpha = alpha_series(test.active, test.base)
    weight = 0.0
    selections = 1.0
    active_validation = alpha_validation = None
    if validation is not None:
        weight = validation_weight(len(test.active), len(validation.active))
        selections = max(validation.selections, 1.0)
        active_validation = _validation(validation.active, validation.trials, validation, 1, seed, draws)
        alphas = alpha_series(validation.active, validation.base).values
        finite = validation.trials[:, np.isfinite(validation.trials).all(0)]
        trials = alpha_series(finite, validation.base).values
        alpha_validation = _validation(alphas, trials, validation, REGRESSION, seed, draws)
    return EdgeTests(
        active=_combine(_z_score(test.active), active_validation, weight),
        alpha=_combine(_z_score(test_alpha.values, REGRESSION), alpha_validation, weight),
        beta=1.0 + float(test_alpha.beta),
        validation_weight=weight,
        selections=selections,
    )


@dataclass(frozen=True)
class _Validation:
    """z-score on validation, before and after selection, and the null distribution of selection."""

    z_score: float
    selected_score: float
    null: Floats


def _validation(
    values: Floats, trials: Floats, period: SelectedPeriod, parameters: int, seed: int, draws: int
) -> _Validation:
    z_score = _z_score(values, parameters)
    null = selected_z_scores(trials, period.members, period.selection, seed=seed, draws=draws)
    return _Validation(z_score, selected_z_score(z_score, null, period.selections), null)


def _combine(z_test: float, validation: _Validation | None, weight: float) -> CombinedTest:
    if validation is None:
        return CombinedTest(p_value=upper_tail(z_test), z_score=z_test, test=z_test)
    z_score = math.sqrt(1 - weight**2) * z_test + weight * validation.selected_score
    return CombinedTest(
        p_value=upper_tail(z_score),
        z_score=z_score,
        test=z_test,
        validation=validation.z_score,
        validation_selected=validation.selected_score,
        expected_from_selection=float(validation.null.mean()),
        effective_trials=effective_trials(validation.null),
    )


def _z_score(values: Floats, parameters: int = 1) -> float:
    """`mean_z_score`; its lowest value for a series that is 0 throughout, of an account that equals its base."""
    return -MAX_Z_SCORE if _is_zero(values) else mean_z_score(values, parameters)


def _is_zero(values: Floats) -> bool:
    """Whether all values are 0, up to rounding errors."""
    return len(values) > 0 and float(np.abs(values).max()) <= RISK_EPSILON


def selected_z_score(z_score: float, null: Floats, selections: float = 1.0) -> float:
    """Z-score after selection: the normal quantile of 1 - `selection_p_value`."""
    p_value = selection_p_value(z_score, null, selections)
    smallest = 1 / (1 + len(null))  # as far from 1 as from 0, so that the quantile is finite
    return -_NORMAL.inv_cdf(min(p_value, 1 - smallest))


def validation_weight(test: int, validation: int) -> float:
    """Weight of validation in the combined z-score, from numbers of bars; the weight of test is sqrt(1 - weight^2)."""
    return math.sqrt(VALIDATION_PRECISION * validation / (test + VALIDATION_PRECISION * validation))


# ---------------------------------------------------------------------- edge


def measure_edge(
    account: Floats,
    base: Floats,
    cash: Floats,
    *,
    level: float,
    minimum: float,
    validation: SelectedPeriod | None = None,
    periods_per_year: float = BARS_PER_YEAR,
    seed: int = 0,
    draws: int = DRAWS,
) -> Edge:
    """Test an account for an edge over a base, and tell the cases apart.

    account, base, cash: simple returns [T] on test. level: largest p-value that shows an edge. minimum: smallest mean
    active return and alpha that matter, per year. validation: the period that the account was selected on, if any.
    draws: number of selections without an edge.
    Raises InputError as `edge_test`.
    """
    active = account - base
    excess = base - cash
    tests = edge_test(ActivePeriod(active, excess), validation, seed=seed, draws=draws)
    active_return = annual_mean(active, LEVEL, periods_per_year)
    alpha = annual_mean(alpha_series(active, excess).values, LEVEL, periods_per_year, REGRESSION)
    own_risk = _account_risk(account, cash, periods_per_year)
    base_risk = _account_risk(base, cash, periods_per_year)
    detectable = detectable_ratio(len(active), periods_per_year, level, POWER)
    is_significant = tests.p_value <= level and own_risk.sharpe >= base_risk.sharpe
    if active_return.high < 0:
        case: Case = "worse"
    elif is_significant:
        case = "shown" if min(active_return.value, alpha.value) >= minimum else "too_small"
    else:
        case = "too_little_data" if detectable > LARGEST_RATIO else "nothing_shown"
    error = float(active.std(ddof=1) * np.sqrt(periods_per_year))
    return Edge(
        case=case,
        p_active=tests.active.p_value,
        p_alpha=tests.alpha.p_value,
        p_value=tests.p_value,
        level=level,
        beta=tests.beta,
        active_return=Estimate(**active_return._asdict()),
        alpha=Estimate(**alpha._asdict()),
        tracking_error=error,
        information_ratio=active_return.value / error if error > RISK_EPSILON else 0.0,
        detectable_ratio=detectable,
        years=len(active) / periods_per_year,
        minimum=minimum,
        account=own_risk,
        base=base_risk,
        tests=tests,
        interval_level=LEVEL,
    )


@check_arguments
def judge_returns(agent: ArrayLike, base: ArrayLike, cash: ArrayLike) -> Edge:
    """Test daily returns for an edge over a base, as the gate tests a champion at a first look.

    agent, base, cash: simple returns [T] on the same days of one test period, such as 0.01 for 1%; cash may be a single
    number. No validation period is used, so the p-values hold for an agent that was not selected on these days. Raises
    InputError for series of different lengths, fewer than 20 returns, and returns that are not finite.
    """
    returns = numbers("agent", agent)
    reference = numbers("base", base)
    rate = numbers("cash", cash)
    if returns.ndim != 1 or returns.shape != reference.shape or rate.shape not in ((), returns.shape):
        raise InputError(
            "agent, base and cash must be returns of the same days, got arrays of shapes "
            f"{returns.shape}, {reference.shape} and {rate.shape}"
        )
    for name, values in (("agent", returns), ("base", reference), ("cash", rate)):
        if not np.isfinite(values).all():
            raise InputError(f"{name} must have finite returns, day {int(np.argmin(np.isfinite(values)))} is not")
    gate = GateConfig()
    return measure_edge(
        returns,
        reference,
        np.broadcast_to(rate, returns.shape),
        level=gate.significance_level,
        minimum=gate.minimum_edge,
    )


def _account_risk(returns: Floats, cash: Floats, periods_per_year: float) -> AccountRisk:
    excess = returns - cash
    deviation = float(excess.std(ddof=1))
    ratio = float(excess.mean()) / deviation if deviation > RISK_EPSILON else 0.0
    return AccountRisk(
        sharpe=ratio * float(np.sqrt(periods_per_year)),
        volatility=float(returns.std(ddof=1) * np.sqrt(periods_per_year)),
        drawdown=max_drawdown(np.concatenate([[1.0], np.cumprod(1 + returns)])),
    )
