"""Whether a champion earned its place: better than every baseline on validation, and better than luck on test."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from finrl_pod.evaluate.simulate import RUINED
from finrl_pod.evaluate.statistics import growth_interval
from finrl_pod.types import BacktestResult, Floats
from finrl_pod_app.report.document import Verdict

LEVEL = 0.90
FEWEST_BARS = 21  # the block bootstrap needs 20 returns
REFERENCE = "equal_weight"


def judge(validation: Mapping[str, BacktestResult], test: Mapping[str, BacktestResult], seed: int) -> Verdict:
    """Promoted when both rules hold:

    1. the champion's Sharpe ratio on the validation split is above every baseline's;
    2. the 90% stationary-block-bootstrap interval of its mean log growth a bar over equal weight, on the test split,
       lies above zero.
    """
    reasons = []
    champion = validation["champion"].metrics["sharpe"]
    rivals = {name: result.metrics["sharpe"] for name, result in validation.items() if name != "champion"}
    best = max(rivals, key=lambda name: rivals[name] if np.isfinite(rivals[name]) else -np.inf)
    ahead = bool(champion > rivals[best])
    reasons.append(
        f"on validation its Sharpe ratio of {champion:.2f} is {'above' if ahead else 'not above'} every baseline's "
        f"(the best is {best.replace('_', ' ')} with {rivals[best]:.2f})"
    )
    excess = log_returns(test["champion"]) - log_returns(test[REFERENCE])
    low, high = growth_interval(excess, LEVEL, seed=seed)
    proven = bool(low > 0)
    reasons.append(
        f"on test its log growth over equal weight is {excess.mean() * 1e4:.2f} basis points a bar, with a "
        f"{LEVEL:.0%} interval of {low * 1e4:.2f} to {high * 1e4:.2f} that {'lies' if proven else 'does not lie'} "
        "above zero"
    )
    return Verdict(ahead and proven, tuple(reasons))


def log_returns(result: BacktestResult) -> Floats:
    """[T-1] log returns of a result's equity; at or below zero it counts as a 1e-9th of the first."""
    returns: Floats = np.diff(np.log(np.maximum(result.equity, result.equity[0] * RUINED)))
    return returns
