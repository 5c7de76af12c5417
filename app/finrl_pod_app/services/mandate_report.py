"""What a champion adds to the base of its mandate, and how much of the mandate it uses, as parts of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from finrl_pod_strategies.user_strategy import load_strategy

from finrl_pod.evaluate.active_management import (
    LEVEL,
    TAIL,
    active_return,
    active_share,
    active_statistics,
    effective_number,
    mean_absolute_tilt,
    transfer_coefficient,
)
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.intervals import MIN_BARS, Interval
from finrl_pod.evaluate.mean_test import mean_p_value
from finrl_pod.evaluate.metrics import bars_per_year, simple_returns
from finrl_pod.evaluate.stop_rule import active_band
from finrl_pod.market.mandate import active_mandate
from finrl_pod.market.rules import rules_of
from finrl_pod.promotion.rules import CHAMPION, REFERENCE
from finrl_pod.settings.run import MandateConfig, RunConfig
from finrl_pod.types import BacktestResult, Floats, MarketTensor, Panel
from finrl_pod_app.services.trial_log import reference_strategy


@dataclass(frozen=True, eq=False)
class MandatePeriod:
    """A champion over a period, with the mandate at tilt 0 under the same trading.

    desired: active weights [L, N] of the champion before limits and slow trading, NaN where there are none.
    """

    champion: BacktestResult
    tilt_zero: BacktestResult
    desired: Floats


def mandate_period(config: RunConfig, results: Mapping[str, BacktestResult], desired: Floats) -> MandatePeriod | None:
    """A champion's period; None if the mandate is unconstrained.

    results: of the champion and of the run's reference. desired: [L, N], from the champion's `MandateRecorder`.
    """
    if active_mandate(config.mandate) is None:
        return None
    return MandatePeriod(results[CHAMPION], results[reference_strategy(config).name], desired)


def base_name(mandate: MandateConfig) -> str:
    """The strategy that a champion is compared with: its base, or equal weight if it is unconstrained."""
    return REFERENCE if mandate.base == "none" else mandate.base


def mandate_parts(
    config: RunConfig,
    results: Mapping[str, BacktestResult],
    periods: Mapping[str, MandatePeriod | None],
    panel: Panel,
    market: MarketTensor,
    span: tuple[int, int],
) -> dict[str, Any]:
    """The report's parts mandate, added, added_to_tilt_zero, mandate_usage and stop_rule.

    results: of the champion and of baselines on the bars of `span`; the base is tested there if it is not among them.
    span: first and last bar. periods: by name, "test" required, which covers the same bars.
    """
    name, champion, test = base_name(config.mandate), results[CHAMPION], periods["test"]
    terms = (rules_of(config.environment), config.environment.cash)
    base = results[name] if name in results else backtest(load_strategy(name), panel, market, *span, *terms)
    return {
        "mandate": asdict(config.mandate),
        "added": added(champion, base, config.seed),
        "added_to_tilt_zero": None if test is None else added(champion, test.tilt_zero, config.seed),
        "mandate_usage": {name: usage(period) for name, period in periods.items() if period is not None} or None,
        "stop_rule": None if test is None else _stop_rule(test, config.seed),
    }


def _stop_rule(test: MandatePeriod, seed: int) -> dict[str, Any] | None:
    """The band of active returns, which the paper-trading daemon compares its account with."""
    band = active_band(test.champion.equity, test.tilt_zero.equity, seed)
    return None if band is None else band.to_dict()


def added(champion: BacktestResult, base: BacktestResult, seed: int) -> dict[str, Any] | None:
    """Statistics of a champion against a base with their intervals; None for fewer than `MIN_BARS` returns.

    value, low and high are of the difference of Sharpe ratios.
    """
    returns, reference = simple_returns(champion.equity), simple_returns(base.equity)
    if len(returns) < MIN_BARS:
        return None
    found = active_statistics(
        returns, reference, seed=seed, periods_per_year=bars_per_year(champion.times), risk_free=champion.risk_free
    )
    named = {field: getattr(found, field) for field in ("information_ratio", "alpha", "beta")}
    return {
        "base": base.name,
        "level": LEVEL,
        **found.sharpe_difference._asdict(),
        "sharpe": {"champion": champion.metrics["sharpe"], "base": base.metrics["sharpe"]},
        **{field: value._asdict() if isinstance(value, Interval) else value for field, value in named.items()},
        "active_return": _active_return(returns, reference, seed, bars_per_year(champion.times)),
        "tracking_error": found.tracking_error,
        "years_to_show": found.years_to_show,
    }


def comparison(tested: BacktestResult, base: BacktestResult, seed: int) -> dict[str, Any] | None:
    """The active return of one backtest over another with its interval, and the p-value of no edge.

    The p-value is that of the edge test of the test period alone: it does not know how many others were tried. None for
    fewer than `MIN_BARS` returns, and for equal ones.
    """
    returns, reference = simple_returns(tested.equity), simple_returns(base.equity)
    if len(returns) < MIN_BARS or np.ptp(returns - reference) == 0:
        return None
    return {
        "of": tested.name,
        "base": base.name,
        "level": LEVEL,
        "active_return": _active_return(returns, reference, seed, bars_per_year(tested.times)),
        "p_value": mean_p_value(returns - reference),
    }


def _active_return(own: Floats, base: Floats, seed: int, periods: float) -> dict[str, float]:
    return active_return(own, base, seed=seed, periods_per_year=periods)._asdict()


def usage(period: MandatePeriod) -> dict[str, float]:
    """How much of a mandate was used in a period, against the mandate at tilt 0 with the same trading.

    Weights are those held at the closes; desired weights are compared with those held one bar later.
    """
    held, base = period.champion.weights, period.tilt_zero.weights
    holdings = effective_number(held)
    known = holdings[np.isfinite(holdings)]
    shares = active_share(held, base)
    active = simple_returns(period.champion.equity) - simple_returns(period.tilt_zero.equity)
    years = bars_per_year(period.champion.times)
    return {
        "mean_absolute_tilt": mean_absolute_tilt(held, base),
        "active_share": float(np.nanmean(shares)) if np.isfinite(shares).any() else float("nan"),
        "effective_holdings": float(known.mean()) if len(known) else float("nan"),
        "effective_holdings_low": float(np.quantile(known, TAIL)) if len(known) else float("nan"),
        "turnover": period.champion.metrics["turnover"],
        "turnover_at_tilt_zero": period.tilt_zero.metrics["turnover"],
        "tracking_error": float(active.std(ddof=1) * np.sqrt(years)),
        "transfer_coefficient": transfer_coefficient(period.desired[:-1], (held - base)[1:]),
    }
