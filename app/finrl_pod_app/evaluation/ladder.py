"""The ladder of a run: base, fixed tilts, solved policy, trained ensemble, side by side on validation and test.

Base and fixed tilts are there for comparison and are never deployed. The trained ensemble takes the place of the solved
policy that it started from only if its return over it is shown on validation; nothing is chosen by the test.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from finrl_pod_strategies.base_portfolios import with_base

from finrl_pod.data.splits import Span
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import FeatureError
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.metrics import annual_turnover, bars_per_year, excess_returns, sharpe
from finrl_pod.evaluate.significance import alpha_series
from finrl_pod.market.mandate import active_mandate
from finrl_pod.promotion.gate import CHAMPION
from finrl_pod.rl.acting import MeanActor, run_members
from finrl_pod.rl.algorithms.closed_form import scaled
from finrl_pod.rl.networks.policies import LINEAR, PolicySpec
from finrl_pod.tournament.run_directory import START, RunDirectory
from finrl_pod.tournament.selection import START_SIGNIFICANCE, ChampionMembers, compared_with_start, ensemble_of
from finrl_pod.types import BacktestResult, Floats, MarketTensor, Tensor
from finrl_pod_app.evaluation.champions import load_champion, period_of, reference_strategy
from finrl_pod_app.evaluation.promotion import ChampionEvaluation, EvaluationContext
from finrl_pod_app.report.records import ReportParts, Rung, RungPeriod

BASE = "base"
TRAINED = "rl"
# Rung -> feature and sign of its score, in the order of the table. Defined before any test bar is read.
FIXED_TILTS: Mapping[str, tuple[str, float]] = {
    "momentum": ("momentum_252_21", 1.0),
    "reversal": ("return_5", -1.0),
    "low_volatility": ("volatility_252", -1.0),
}
PERIODS = ("validation", "test")


@dataclass(frozen=True)
class Curve:
    """equity: [T] marks of an account at the bars of a period. turnover: one-sided, per year."""

    equity: Floats
    turnover: float


def ladder_parts(
    context: EvaluationContext, run: RunDirectory, members: ChampionMembers, evaluation: ChampionEvaluation
) -> ReportParts:
    """The parts `ladder` and `start` of the report; none without a mandate.

    Call it after the look at the test period is recorded.
    """
    config = context.config
    if active_mandate(config.mandate) is None:
        return {}
    comparison = compared_with_start(run, config, ensemble_of(run, config))
    deployed_rung = START if members.ids == (START,) or config.agent.algorithm == START else TRAINED
    spans = {"validation": context.splits.validation, "test": context.splits.test}
    results = {"validation": evaluation.validation, "test": evaluation.test}
    curves = {name: _curves(context, run, deployed_rung, spans[name], results[name]) for name in PERIODS}
    reference = reference_strategy(config).name
    rungs = [
        Rung(
            rung=name,
            deployed=name == deployed_rung,
            validation=_period(curves["validation"][name], results["validation"][reference]),
            test=_period(curves["test"][name], results["test"][reference]),
        )
        for name in curves["test"]
    ]
    if comparison is None:
        return {"ladder": rungs, "start": None}
    return {
        "ladder": rungs,
        "start": {**vars(comparison), "level": START_SIGNIFICANCE, **dataclasses.asdict(run.start_folds())},
    }


def _curves(
    context: EvaluationContext, run: RunDirectory, deployed_rung: str, span: Span, results: Mapping[str, BacktestResult]
) -> dict[str, Curve]:
    """Accounts of all rungs over a period, by name and in order.

    results: results of the champion and of the reference.
    """
    config = context.config
    market = context.market
    reference = results[reference_strategy(config).name]
    curves = {BASE: _curve(reference), **_fixed_tilts(context, span)}
    champion = _curve(results[CHAMPION])
    if run.has_start and deployed_rung == START:
        ensemble = load_champion(run, ensemble_of(run, config))
        result = backtest(ensemble, context.panel, period_of(market, span, config))
        return {**curves, START: champion, TRAINED: _curve(result)}
    if run.has_start:
        weights = run.snapshot(START).weights[LINEAR]
        curves[START] = _linear(context, market, weights.unsqueeze(0), span)[0]
    return {**curves, deployed_rung: champion}


def _fixed_tilts(context: EvaluationContext, span: Span) -> dict[str, Curve]:
    """Accounts of the fixed tilts, with scores of the same scale as the solved policy; empty without their features."""
    config = context.config
    panel = context.panel
    train = context.splits.train
    names = tuple(dict.fromkeys(feature for feature, _ in FIXED_TILTS.values()))
    try:
        market = build_market(panel, names, (train.first, train.last), config.environment.fill)
    except FeatureError:
        return {}
    market = with_base(market, panel, config.mandate)
    rows = []
    for feature, sign in FIXED_TILTS.values():
        weights = np.zeros(len(names))
        weights[names.index(feature)] = sign
        rows.append(scaled(weights, market, max(train.first, market.first), train.last))
    return dict(zip(FIXED_TILTS, _linear(context, market, torch.stack(rows), span), strict=True))


def _linear(context: EvaluationContext, market: MarketTensor, weights: Tensor, span: Span) -> list[Curve]:
    """Accounts of linear policies with weights [M, F] for the features of a market."""
    config = context.config
    (_, assets, features) = market.shape
    actor = MeanActor(PolicySpec("linear", assets, features, assets, (), action="tilt"))
    rules = dataclasses.replace(config.environment, kind="portfolio")  # scores, whatever the actions of the agents are
    terms = (rules, span.first, span.last, config.mandate)
    ledger = run_members(actor, {LINEAR: weights.to(market.features)}, market, *terms)
    periods = bars_per_year(market.times)
    return [
        Curve(ledger.equity[:, m].numpy(), annual_turnover(ledger.turnover[:, m].numpy(), periods))
        for m in range(len(weights))
    ]


def _curve(result: BacktestResult) -> Curve:
    return Curve(np.asarray(result.equity), float(result.metrics["turnover"]))


def _period(curve: Curve, base: BacktestResult) -> RungPeriod:
    """Statistics of an account relative to the base on the same bars."""
    periods = bars_per_year(base.times)
    returns, reference = (excess_returns(equity, base.risk_free) for equity in (curve.equity, base.equity))
    active = returns - reference
    return RungPeriod(
        active_return=float(active.mean()) * periods,
        alpha=float(alpha_series(active, reference).values.mean()) * periods,
        tracking_error=float(active.std(ddof=1)) * math.sqrt(periods),
        sharpe_difference=float(
            sharpe(curve.equity, periods, base.risk_free) - sharpe(base.equity, periods, base.risk_free)
        ),
        turnover=curve.turnover,
    )
