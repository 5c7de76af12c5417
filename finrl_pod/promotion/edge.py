"""A champion's edge on test: what it earned over its reference, what of it is market risk, and which case that is.

All figures concern one reference, the base traded as slowly as the agents trade, and returns in excess of cash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.errors import InputError
from finrl_pod.evaluate.active_management import LEVEL, annual_mean
from finrl_pod.evaluate.intervals import Interval
from finrl_pod.evaluate.mean_significance import REGRESSION, alpha_series, detectable_ratio
from finrl_pod.evaluate.metrics import BARS_PER_YEAR, RISK_EPSILON, max_drawdown
from finrl_pod.evaluate.selection_null import DRAWS
from finrl_pod.promotion.edge_significance import ActivePeriod, EdgeTest, SelectedPeriod, edge_test
from finrl_pod.settings.run import GateConfig
from finrl_pod.types import Floats

POWER = 0.8  # probability with which a test should show an edge
LARGEST_RATIO = 1.0  # a test that needs a larger information ratio for that power has too little data

Case = Literal["worse", "shown", "too_small", "too_little_data", "nothing_shown"]


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
