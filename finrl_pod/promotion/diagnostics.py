"""Further statistics of a champion, for readers of the verdict; no rule depends on them.

Deflated Sharpe ratio and probability of backtest overfitting of its selection, probabilistic Sharpe ratio and minimum
track record on test, tests against every baseline, and bootstrap intervals of the account.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from finrl_pod.errors import InputError
from finrl_pod.evaluate.intervals import account_intervals
from finrl_pod.evaluate.metrics import bars_per_year, is_constant, simple_returns
from finrl_pod.evaluate.overfitting import Overfitting, backtest_overfitting
from finrl_pod.evaluate.significance import (
    deflated_sharpe,
    minimum_track_record,
    moments,
    probabilistic_sharpe,
    reality_check,
    sharpe_standard_error,
    superior_predictive_ability,
)
from finrl_pod.files import to_plain
from finrl_pod.promotion.rules import CHAMPION, PromotionEvidence, active_returns
from finrl_pod.types import Floats

LOGIT_BINS = 40
PBO_BLOCKS = 16  # of validation, for the probability of backtest overfitting


def diagnostics(evidence: PromotionEvidence, draws: int) -> dict[str, Any]:
    """Statistics by name; those that cannot be computed are left out."""
    found: dict[str, Any] = {"test_intervals": _test_intervals(evidence)}
    selection = evidence.test if evidence.validation is None else evidence.validation
    with contextlib.suppress(InputError):
        found |= _deflated_sharpe(evidence, active_returns(selection, evidence.reference))
    with contextlib.suppress(InputError):
        found["overfitting"] = _overfitting(backtest_overfitting(varying_trials(evidence.trials), PBO_BLOCKS))
    with contextlib.suppress(InputError):
        own = moments(active_returns(evidence.test, evidence.reference))
        found["probabilistic_sharpe"] = probabilistic_sharpe(own)
        found["minimum_track_record"] = to_plain(minimum_track_record(own))
    with contextlib.suppress(InputError):
        found |= _tests_against_baselines(evidence, draws)
    return found


def _deflated_sharpe(evidence: PromotionEvidence, active: Floats) -> dict[str, float]:
    """Deflated Sharpe ratio of active returns with raw and clustered counts of trials."""
    own, counts = moments(active), evidence.counts
    variance = null_sharpe_variance(evidence.trials)
    return {
        "active_sharpe": own.sharpe,
        "deflated_sharpe": deflated_sharpe(own, variance, max(counts.raw, 1)),
        "deflated_sharpe_clustered": deflated_sharpe(own, variance, max(counts.clustered, 1)),
    }


def null_sharpe_variance(trials: Floats) -> float:
    """Variance of one-period Sharpe ratios that trials [T, N] without skill would have.

    The sample variance of the trials' ratios, but at most their mean sampling error. Ratios of trials without skill
    vary by their sampling error, or less if the trials are correlated. A larger variance comes from skill: some agents
    have learned, others have not yet. Deflating by that would penalise learning.
    """
    values = varying_trials(trials)
    if values.shape[1] < 2:
        return 0.0
    error = float(np.mean([sharpe_standard_error(moments(values[:, n])) ** 2 for n in range(values.shape[1])]))
    return min(float(np.var(trial_sharpes(trials), ddof=1)), error)


def trial_sharpes(trials: Floats) -> Floats:
    """One-period Sharpe ratios of the trials [T, N] whose returns vary."""
    values = varying_trials(trials)
    return np.asarray(values.mean(0) / values.std(0, ddof=1), dtype=np.float64)


def varying_trials(trials: Floats) -> Floats:
    """The trials [T, N] whose returns are finite and not constant."""
    kept = [n for n in range(trials.shape[1]) if np.isfinite(trials[:, n]).all() and not is_constant(trials[:, n])]
    return trials[:, kept]


def _tests_against_baselines(evidence: PromotionEvidence, draws: int) -> dict[str, Any]:
    """p-values on test: of superior predictive ability over each baseline, and of White's Reality Check."""
    ours = simple_returns(evidence.test[CHAMPION].equity)
    p_values = {}
    for name, result in evidence.test.items():
        theirs = simple_returns(result.equity)
        if name != CHAMPION and not is_constant(ours - theirs):
            p_values[name] = superior_predictive_ability(theirs, ours, seed=evidence.seed, draws=draws)
    found: dict[str, Any] = {"superior_ability": p_values}
    theirs = simple_returns(evidence.test[evidence.reference].equity)
    others = [simple_returns(result.equity) for result in evidence.test.values()]
    models = [returns for returns in others if not is_constant(returns - theirs)]
    if models:
        found["reality_check"] = reality_check(theirs, np.stack(models, 1), seed=evidence.seed, draws=draws)
    return found


def _test_intervals(evidence: PromotionEvidence) -> dict[str, Any] | None:
    """Sharpe ratio, annual return and maximum drawdown of the champion on test, with 90% intervals."""
    result = evidence.test[CHAMPION]
    returns = simple_returns(result.equity)
    if is_constant(returns) or returns.min() <= -1:
        return None
    found = account_intervals(
        returns, seed=evidence.seed, periods_per_year=bars_per_year(result.times), risk_free=result.risk_free
    )
    return {name: interval._asdict() for name, interval in found._asdict().items()}


def _overfitting(found: Overfitting) -> dict[str, Any]:
    edge = float(np.abs(found.logits).max()) + 1e-9
    counts, edges = np.histogram(found.logits, LOGIT_BINS, (-edge, edge))
    return {
        "pbo": found.pbo,
        "loss": found.loss_probability,
        "splits": len(found.logits),
        "blocks": found.blocks,
        "trials": found.trials,
        "logits": {"counts": counts.tolist(), "edges": [round(float(x), 6) for x in edges]},
    }
