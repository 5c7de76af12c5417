"""What the active weights of a champion come from, feature by feature, as a part of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from finrl_pod_strategies.mandate_account import DecisionRecorder
from finrl_pod_strategies.score_parts import REST, ScoreParts

from finrl_pod.types import BacktestResult, Floats
from finrl_pod.user_files import unpinned
from finrl_pod_app.report.records import ScoreAttribution, ScoredAsset, ScoredFeature


class _FeatureSums(NamedTuple):
    """Sums over the assets, for D decisions and F features.

    products: [D, F], active weights times contributions. slopes: [D, F], covariance of contribution and feature.
    """

    products: Floats
    slopes: Floats


def score_attribution(recorder: DecisionRecorder, result: BacktestResult) -> ScoreAttribution | None:
    """The features in the recorded scores of a backtest; None if the scores prefer no asset to another.

    The share of a feature is the sum of active weight times contribution over assets and months, over the sum of active
    weight times score: the shares of all features add up to 1, and what is equal for all assets has none. Active
    weights are the desired ones over the base, before limits and slow trading; without a mandate the score less its
    mean over the assets.
    """
    decisions = [decision.parts() for decision in recorder.monthly_decisions]
    has_mandate = recorder.inner.account is not None
    tilts = recorder.desired_tilts(result.times, len(result.symbols)).weights
    active_weights = [
        np.nan_to_num(tilts[np.searchsorted(result.times, decision.time)])
        if has_mandate
        else _deviations(decision.scores[:, None], decision)[:, 0]
        for decision in decisions
    ]
    totals = np.array([active @ decision.scores for active, decision in zip(active_weights, decisions, strict=True)])
    if recorder.last_decision is None or not totals.sum() > 0:
        return None
    last = recorder.last_decision.parts()
    names = tuple(dict.fromkeys(name for decision in (*decisions, last) for name in decision.features))
    sums = _feature_sums(decisions, active_weights, names)
    shares = sums.products.sum(0) / totals.sum()
    by_date = sums.products / np.where(totals > 0, totals, np.nan)[:, None]
    order = np.argsort(-np.abs(shares), kind="stable").tolist()
    features = tuple(
        ScoredFeature(
            name=unpinned(names[i]),
            share=float(shares[i]),
            prefers=None if names[i] == REST else "high" if sums.slopes[:, i].sum() >= 0 else "low",
            by_date=tuple(by_date[:, i].tolist()),
        )
        for i in order
    )
    columns = [last.features.index(names[i]) if names[i] in last.features else None for i in order]
    assets = tuple(
        ScoredAsset(
            symbol=result.symbols[n],
            score=float(last.scores[n]),
            contributions=tuple(0.0 if i is None else float(last.contributions[n, i]) for i in columns),
        )
        for n in np.argsort(-last.scores, kind="stable")
        if last.tradable[n]
    )
    return ScoreAttribution(
        of="active weights" if has_mandate else "scores",
        dates=tuple(_day(decision.time) for decision in decisions),
        features=features,
        last_date=_day(last.time),
        assets=assets,
    )


def _day(time: np.datetime64) -> str:
    return str(time.astype("datetime64[D]"))


def _feature_sums(
    decisions: Sequence[ScoreParts], active_weights: Sequence[Floats], names: tuple[str, ...]
) -> _FeatureSums:
    products = np.zeros((len(decisions), len(names)))
    slopes = np.zeros_like(products)
    for row, (decision, active) in enumerate(zip(decisions, active_weights, strict=True)):
        columns = [names.index(name) for name in decision.features]
        products[row, columns] = active @ decision.contributions
        slopes[row, columns] = (decision.contributions * _deviations(decision.values, decision)).sum(0)
    return _FeatureSums(products, slopes)


def _deviations(values: Floats, decision: ScoreParts) -> Floats:
    """Values [N, F] less their mean over the tradable assets, 0 for others."""
    if not decision.tradable.any():
        return np.zeros_like(values)
    is_tradable = decision.tradable[:, None]
    deviations: Floats = np.where(is_tradable, values - values[decision.tradable].mean(0), 0.0)
    return deviations
