"""A champion's edge on test: what it earned over its reference, what of it is market risk, and which case that is.

All figures concern one reference, the base traded as slowly as the agents trade, and returns in excess of cash.

An edge must be shown twice over the same base. The mean active return shows that the champion earned more; alpha, the
active return less beta times the base, shows that it earned more than its market risk explains. The p-value is the
larger of the two (an intersection-union test, Berger 1982: its size is at most that of either).

For each of the two, both periods carry information about the same edge, so they are combined:

    Z = (sqrt(n) z + sqrt(m / 2) z') / sqrt(n + m / 2)

z is the z-score of the mean on the n bars of test, which were not used for selection. z' is the z-score on the m bars
of validation after selection: the normal quantile of the probability that selection alone, among trials without an
edge, reaches the champion's z-score (`selection_null`). Without an edge z and z' are independent standard normal
variables, and so is Z (weighted inverse normal method, Liptak 1958). Optimal weights of two periods are the square
roots of their lengths; validation counts half its length. This costs 1.5% of the signal and limits the effect of trials
that were never recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.errors import InputError
from finrl_pod.evaluate.active_management import LEVEL, annual_mean
from finrl_pod.evaluate.intervals import Interval
from finrl_pod.evaluate.metrics import BARS_PER_YEAR, RISK_EPSILON, max_drawdown
from finrl_pod.evaluate.selection_null import (
    DRAWS,
    Selection,
    effective_trials,
    selected_z_scores,
    selection_p_value,
)
from finrl_pod.evaluate.significance import (
    MAX_Z_SCORE,
    REGRESSION,
    alpha_series,
    detectable_ratio,
    mean_z_score,
    upper_tail,
)
from finrl_pod.settings.run import GateConfig
from finrl_pod.types import Floats

POWER = 0.8  # probability with which a test should show an edge
LARGEST_RATIO = 1.0  # a test that needs a larger information ratio for that power has too little data

Case = Literal["worse", "shown", "too_small", "too_little_data", "nothing_shown"]
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


# ---------------------------------------------------------------------- edge


@dataclass(frozen=True)
class AccountRisk:
    """An account on test: annual Sharpe ratio in excess of cash, annual volatility, and maximum drawdown (negative)."""

    sharpe: float
    volatility: float
    drawdown: float


@dataclass(frozen=True)
class Edge:
    """The edge of an account over its reference on test, and the case that the verdict states.

    p_active, p_alpha, p_value: p-values of no edge, of the mean active return, of alpha, and the larger of the two.
    level: p-value that is needed, at this look. beta: slope of the account's returns on the reference's.
    active_return, alpha: per year on test, with intervals of coverage `interval_level`. tracking_error: per year.
    information_ratio: active return over tracking error. detectable_ratio: the one that the test alone shows with a
    probability of 80%. years: length of the test. minimum: smallest active return and alpha that matter, per year.
    account, base: both accounts. tests: z-scores behind the p-values. reference: name of the strategy that everything
    is relative to. portfolio: the base portfolio that the reference trades slowly; empty without a mandate.
    where: name of the test period in messages. is_demonstration: True for prices and years that were used to build
    finrl_pod.
    """

    case: Case
    p_active: float
    p_alpha: float
    p_value: float
    level: float
    beta: float
    active_return: Interval
    alpha: Interval
    tracking_error: float
    information_ratio: float
    detectable_ratio: float
    years: float
    minimum: float
    account: AccountRisk
    base: AccountRisk
    tests: EdgeTest
    interval_level: float = LEVEL
    reference: str = ""
    portfolio: str = ""
    where: str = "on test"
    is_demonstration: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, intervals and records as mappings."""
        values = dict(vars(self))
        for name in ("active_return", "alpha"):
            values[name] = values[name]._asdict()
        for name in ("account", "base"):
            values[name] = dict(vars(values[name]))
        tests = self.tests
        values["tests"] = {**vars(tests), "active": vars(tests.active), "alpha": vars(tests.alpha)}
        return values


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
    reference: str = "",
    portfolio: str = "",
    where: str = "on test",
    is_demonstration: bool = False,
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
        active_return=active_return,
        alpha=alpha,
        tracking_error=error,
        information_ratio=active_return.value / error if error > RISK_EPSILON else 0.0,
        detectable_ratio=detectable,
        years=len(active) / periods_per_year,
        minimum=minimum,
        account=own_risk,
        base=base_risk,
        tests=tests,
        reference=reference,
        portfolio=portfolio,
        where=where,
        is_demonstration=is_demonstration,
    )


def judge_returns(agent: ArrayLike, base: ArrayLike, cash: ArrayLike) -> Edge:
    """Test daily returns for an edge over a base, as the gate tests a champion at a first look.

    agent, base, cash: simple returns [T] on the same days of one test period, such as 0.01 for 1%; cash may be a single
    number. No validation period is used, so the p-values hold for an agent that was not selected on these days. Raises
    InputError for series of different lengths, fewer than 20 returns, and returns that are not finite.
    """
    own, reference = (np.asarray(values, dtype=np.float64) for values in (agent, base))
    rate = np.asarray(cash, dtype=np.float64)
    if own.ndim != 1 or own.shape != reference.shape or rate.shape not in ((), own.shape):
        raise InputError(
            "agent, base and cash must be returns of the same days, got arrays of shapes "
            f"{own.shape}, {reference.shape} and {rate.shape}"
        )
    for name, values in (("agent", own), ("base", reference), ("cash", rate)):
        if not np.isfinite(values).all():
            raise InputError(f"{name} must have finite returns, day {int(np.argmin(np.isfinite(values)))} is not")
    gate = GateConfig()
    return measure_edge(
        own,
        reference,
        np.broadcast_to(rate, own.shape),
        level=gate.significance_level,
        minimum=gate.minimum_edge,
    )


def _account_risk(returns: Floats, cash: Floats, periods_per_year: float) -> AccountRisk:
    excess = returns - cash
    deviation = float(excess.std(ddof=1))
    ratio = float(excess.mean()) / deviation if deviation > RISK_EPSILON else 0.0
    equity = np.concatenate([[1.0], np.cumprod(1 + returns)])
    return AccountRisk(
        ratio * float(np.sqrt(periods_per_year)),
        float(returns.std(ddof=1) * np.sqrt(periods_per_year)),
        float(max_drawdown(equity)),
    )
