"""What a champion adds to its base, traded as slowly, and how much of its mandate it uses, as parts of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from finrl_pod_strategies.mandate_account import DesiredTilts

from finrl_pod.evaluate import active_management
from finrl_pod.evaluate.active_attribution import active_attribution
from finrl_pod.evaluate.intervals import MIN_BARS
from finrl_pod.evaluate.metrics import bars_per_year, simple_returns
from finrl_pod.market.mandate import active_mandate
from finrl_pod.promotion.edge import ActivePeriod, edge_test
from finrl_pod.promotion.gate import CHAMPION
from finrl_pod.promotion.verdict import Estimate, PartialEstimate
from finrl_pod.settings.run import RunConfig
from finrl_pod.types import BacktestResult, Floats, Panel
from finrl_pod_app.evaluation.champions import reference_strategy
from finrl_pod_app.report import records
from finrl_pod_app.report.builder import yearly_returns
from finrl_pod_app.report.verdict_text import ACCOUNT

SMALL_SHARE = 0.25  # of the active share that the mandate allows, below which a champion is practically its base
SMALL_TRACKING_ERROR = 0.005  # per year


@dataclass(frozen=True, eq=False)
class MandatePeriod:
    """A champion over a period, with the mandate at tilt 0 under the same trading.

    desired_tilts: tilts [L, N] of the champion before limits and slow trading.
    """

    champion: BacktestResult
    tilt_zero: BacktestResult
    desired_tilts: DesiredTilts


def mandate_period(
    config: RunConfig, results: Mapping[str, BacktestResult], desired_tilts: DesiredTilts
) -> MandatePeriod | None:
    """A champion over a period; None if the mandate is unconstrained.

    results: results of the champion and of the reference of the run. desired_tilts: recorded by `DecisionRecorder`.
    """
    if active_mandate(config.mandate) is None:
        return None
    return MandatePeriod(results[CHAMPION], results[reference_strategy(config).name], desired_tilts)


def mandate_parts(
    config: RunConfig, panel: Panel, results: Mapping[str, BacktestResult], periods: Mapping[str, MandatePeriod | None]
) -> records.ReportParts:
    """The parts of the report: mandate, added, active_attribution, mandate_usage, practically_base and stop_rule.

    results: results of the champion and of the reference; statistics are relative to the reference. periods: name ->
    period; "test" is required and covers the same bars.
    """
    test = periods["test"]
    reference = results[reference_strategy(config).name]
    # The band of active returns with which the paper-trading daemon compares its account.
    band = (
        None
        if test is None
        else active_management.active_band(test.champion.equity, test.tilt_zero.equity, config.seed)
    )
    return {
        "mandate": config.mandate,
        "added": added_value(results[CHAMPION], reference, config.seed),
        "active_attribution": attribution_of(results[CHAMPION], reference, panel, config.seed),
        "mandate_usage": {name: usage(period) for name, period in periods.items() if period is not None} or None,
        "practically_base": None if test is None else practically_base(test),
        "stop_rule": None if band is None else records.StopRule(level=band.level, lower=band.lower),
    }


def practically_base(period: MandatePeriod) -> records.PracticallyBase:
    """Whether a champion hardly differs from its base, and why.

    "flag": its mean active share is below a quarter of "allowed", or its tracking error below 0.5% per year. "allowed":
    mean active share of desired weights if half of the base is tilted up and half down as far as the mandate lets.
    "cause": "small_weights" if the agent asks for less than a quarter of that, "slow_trading" if it holds less than
    half of what it asks for, else "tilt_bound". "best_year", "worst_year": calendar year and return over the base on an
    account of 100,000. "base_return": CAGR of the base without training.
    """
    share = _mean_active_share(period, default=0.0)
    allowed_share = period.desired_tilts.allowed
    error = _tracking_error(period)
    desired_weights = period.desired_tilts.weights[np.isfinite(period.desired_tilts.weights).any(1)]
    desired_share = float((np.nansum(np.abs(desired_weights), 1) / 2).mean()) if len(desired_weights) else 0.0
    cause: Literal["small_weights", "tilt_bound", "slow_trading"] = "tilt_bound"
    if desired_share < SMALL_SHARE * allowed_share:
        cause = "small_weights"
    elif share < desired_share / 2:
        cause = "slow_trading"
    champion_years, base_years = (yearly_returns(x.times, x.equity) for x in (period.champion, period.tilt_zero))
    differences = [
        records.YearDifference(year=year, dollars=ACCOUNT * (champion_years[year] - base_years[year]))
        for year in champion_years
    ]
    differences.sort(key=lambda year: year.dollars)
    return records.PracticallyBase(
        flag=share < SMALL_SHARE * allowed_share or error < SMALL_TRACKING_ERROR,
        active_share=share,
        allowed=allowed_share,
        desired_share=desired_share,
        tracking_error=error,
        cause=cause,
        best_year=differences[-1],
        worst_year=differences[0],
        base_return=period.tilt_zero.metrics["annual_return"],
    )


def _mean_active_share(period: MandatePeriod, default: float) -> float:
    shares = active_management.active_share(period.champion.weights, period.tilt_zero.weights)
    return float(np.nanmean(shares)) if np.isfinite(shares).any() else default


def _tracking_error(period: MandatePeriod) -> float:
    active = simple_returns(period.champion.equity) - simple_returns(period.tilt_zero.equity)
    return float(active.std(ddof=1) * np.sqrt(bars_per_year(period.champion.times)))


def added_value(champion: BacktestResult, base: BacktestResult, seed: int) -> records.Added | None:
    """Statistics of a champion against a base with their intervals; None for fewer than `MIN_BARS` returns."""
    returns = simple_returns(champion.equity)
    reference = simple_returns(base.equity)
    if len(returns) < MIN_BARS:
        return None
    statistics = active_management.active_statistics(
        returns, reference, seed=seed, periods_per_year=bars_per_year(champion.times), risk_free=champion.risk_free
    )
    value, low, high = statistics.sharpe_difference
    return records.Added(
        base=base.name,
        level=active_management.LEVEL,
        value=value,
        low=low,
        high=high,
        sharpe=records.SharpePair(champion=champion.metrics["sharpe"], base=base.metrics["sharpe"]),
        information_ratio=PartialEstimate(**statistics.information_ratio._asdict()),
        alpha=PartialEstimate(**statistics.alpha._asdict()),
        beta=PartialEstimate(**statistics.beta._asdict()),
        active_return=_active_return(returns, reference, bars_per_year(champion.times)),
        tracking_error=statistics.tracking_error,
        years_to_show=statistics.years_to_show,
    )


def attribution_of(
    result: BacktestResult, base: BacktestResult, panel: Panel, seed: int
) -> records.ActiveAttribution | None:
    """The active return of a backtest over another by factor; None as `active_attribution`."""
    attribution = active_attribution(result, base, panel, seed)
    if attribution is None:
        return None
    interval = Estimate(**attribution.residual_interval._asdict())
    values = {**vars(attribution), "residual_interval": interval}
    return records.ActiveAttribution(base=base.name, level=active_management.LEVEL, **values)


def comparison(result: BacktestResult, base: BacktestResult) -> records.Comparison | None:
    """The active return of one backtest over another with its interval, and the p-value of no edge.

    The p-value is the larger one of two tests, of the active return and of alpha, as in the gate. It covers this period
    only and ignores the number of strategies tried. None for fewer than `MIN_BARS` returns, and for equal ones.
    """
    returns = simple_returns(result.equity)
    reference = simple_returns(base.equity)
    if len(returns) < MIN_BARS or np.ptp(returns - reference) == 0:
        return None
    cash = 0.0 if result.risk_free is None else result.risk_free
    return records.Comparison(
        of=result.name,
        base=base.name,
        level=active_management.LEVEL,
        active_return=_active_return(returns, reference, bars_per_year(result.times)),
        p_value=edge_test(ActivePeriod(returns - reference, reference - cash), None).p_value,
    )


def _active_return(returns: Floats, base_returns: Floats, periods: float) -> Estimate:
    return Estimate(**active_management.annual_mean(returns - base_returns, active_management.LEVEL, periods)._asdict())


def usage(period: MandatePeriod) -> records.MandateUsage:
    """How much of a mandate was used in a period, against the mandate at tilt 0 with the same trading.

    Weights are those held at the closes; desired weights are compared with those held one bar later.
    """
    weights, base_weights = period.champion.weights, period.tilt_zero.weights
    holdings = active_management.effective_number(weights)
    finite_holdings = holdings[np.isfinite(holdings)]
    return records.MandateUsage(
        mean_absolute_tilt=active_management.mean_absolute_tilt(weights, base_weights),
        active_share=_mean_active_share(period, default=math.nan),
        effective_holdings=float(finite_holdings.mean()) if len(finite_holdings) else math.nan,
        effective_holdings_low=float(np.quantile(finite_holdings, active_management.TAIL))
        if len(finite_holdings)
        else math.nan,
        turnover=period.champion.metrics["turnover"],
        turnover_at_tilt_zero=period.tilt_zero.metrics["turnover"],
        tracking_error=_tracking_error(period),
        transfer_coefficient=active_management.transfer_coefficient(
            period.desired_tilts.weights[:-1], (weights - base_weights)[1:]
        ),
    )
