"""The tear sheet's numbers as the report's object holds them: of the strategy under test, and beside the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from finrl_pod.evaluate.metrics import bars_per_year
from finrl_pod.evaluate.tearsheet import (
    BAND_LEVEL,
    MIN_BAND_RETURNS,
    ROLLING_BARS,
    cost_summary,
    distribution,
    drawdowns,
    equity_band,
    longest_drawdown,
    monthly_returns,
    rolling_sharpe,
)
from finrl_pod.types import BacktestResult
from finrl_pod_app.report.columns import CHAMPION


def subject(names: Mapping[str, Any]) -> str:
    """The strategy that a report is about: the champion, else the first."""
    return CHAMPION if CHAMPION in names else next(iter(names))


def tear_sheet(results: Mapping[str, BacktestResult]) -> dict[str, Any]:
    """of: whom it is about; drawdowns and monthly returns of that one; rolling Sharpe ratio, distribution, costs and
    the longest drawdown in bars of each."""
    name = subject(results)
    about = results[name]
    return {
        "of": name,
        "drawdowns": [asdict(one) for one in drawdowns(about.times, about.equity)],
        "longest_drawdown": {name: longest_drawdown(one.times, one.equity) for name, one in results.items()},
        "monthly": monthly_returns(about.times, about.equity),
        "rolling_sharpe": {name: _rolling(one) for name, one in results.items()},
        "distribution": {name: distribution(one.equity) for name, one in results.items()},
        "costs": {name: cost_summary(one) for name, one in results.items()},
    }


def band_of(results: Mapping[str, BacktestResult], seed: int) -> dict[str, Any] | None:
    """The bootstrap band of the subject's equity, or None for a series too short, flat or ruined to have one."""
    equity = results[subject(results)].equity
    if len(equity) <= MIN_BAND_RETURNS or (equity <= 0).any() or np.ptp(equity) == 0:
        return None
    return {"level": BAND_LEVEL, **equity_band(equity, seed)}


def _rolling(result: BacktestResult) -> dict[str, float | int | None]:
    ratios = rolling_sharpe(result.equity, result.risk_free, periods=bars_per_year(result.times))
    known = ratios[np.isfinite(ratios)]
    if not known.size:
        return {"window": ROLLING_BARS, "last": None, "low": None, "high": None}
    return {"window": ROLLING_BARS, "last": float(known[-1]), "low": float(known.min()), "high": float(known.max())}
