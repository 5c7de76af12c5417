"""Scores of a generation's members, whatever algorithm trained them.

`MarketScorer`: the Sharpe ratio of each member's float64 backtest on validation. `EpisodeScorer`: the mean return of
evaluation episodes, on environments without a market.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch

from finrl_pod.data.turbulence import turbulent_bars
from finrl_pod.evaluate.metrics import METRICS, bars_per_year, summary
from finrl_pod.evaluate.simulate import Ledger, simulate
from finrl_pod.market.account_extras import AccountTracker
from finrl_pod.market.mandate import MandateAccounts, MandateTable, active_mandate
from finrl_pod.market.rules import rules_of
from finrl_pod.market.venue import Venue
from finrl_pod.protocols import VecEnv
from finrl_pod.random import key
from finrl_pod.rl.algorithms.base import Actor
from finrl_pod.rl.training.acting import DecisionInputs, target_weights, tilt_scores
from finrl_pod.rl.training.episodes import episode_returns
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig, RunConfig
from finrl_pod.tournament.active_returns import base_returns, member_returns
from finrl_pod.types import Floats, MarketTensor, Tensor

EVALUATION = "evaluation"  # purpose of the random stream
NO_METRICS = dict.fromkeys(METRICS, math.nan)


class MemberResults(NamedTuple):
    """Results of P members on validation.

    scores: [P], NaN without a number. metrics: name -> value of each. equity: [T, P] marks of the accounts, none off a
    market. returns: [K, P] by bar in excess of cash, or by episode; NaN for a member without a score. base: [K], of the
    base portfolio, None off a market.
    """

    scores: Sequence[float]
    metrics: Sequence[Mapping[str, float]]
    equity: Floats
    returns: Floats
    base: Floats | None


class Scorer(Protocol):
    """Measures the members of a learner on data or episodes that they are not trained on."""

    def __call__(self, learner: Learner) -> MemberResults: ...


@dataclass(frozen=True, eq=False)
class MarketScorer:
    """Scores by the Sharpe ratio of a backtest on the CPU, wherever the members are trained.

    market: on the CPU; a backtest checks numbers in every bar, for which a GPU would have to be waited for. validation:
    its first and last bar.
    """

    market: MarketTensor
    config: RunConfig
    validation: tuple[int, int]

    def __call__(self, learner: Learner) -> MemberResults:
        algorithm, config = learner.algorithm, self.config
        weights = {name: tensor.cpu() for name, tensor in algorithm.weights().items()}
        ledger = run_members(
            algorithm.actor, weights, self.market, config.environment, *self.validation, config.mandate
        )
        metrics = metrics_of(ledger, self.market)
        return MemberResults(
            [values["sharpe"] for values in metrics],
            metrics,
            ledger.equity.numpy(),
            member_returns(ledger),
            base_returns(self.market, ledger.first, ledger.last, ledger.risk_free),
        )


@dataclass(frozen=True, eq=False)
class EpisodeScorer:
    """Scores by the mean return of evaluation episodes without exploration, the same ones for all members.

    make_env: member ids -> environments, each of which plays one episode; equal ids give equal episodes.
    """

    make_env: Callable[[Sequence[int]], VecEnv]
    seed: int

    def __call__(self, learner: Learner) -> MemberResults:
        members = learner.env.members
        returns = episode_returns(self.make_env([0] * members), learner.act, key(self.seed, 0, EVALUATION))
        columns = returns.T.numpy()  # [episodes, P]
        metrics = [{"mean_return": float(row.mean()), "std_return": float(row.std(correction=0))} for row in returns]
        return MemberResults([x["mean_return"] for x in metrics], metrics, columns[:0], columns, None)


def run_members(
    actor: Actor,
    params: Mapping[str, Tensor],
    market: MarketTensor,
    config: EnvironmentConfig,
    first: int,
    last: int,
    mandate: MandateConfig | None = None,
) -> Ledger:
    """Simulate P accounts from bar first to last, each controlled by one member without exploration.

    mandate: the one that the members were trained under. The equity of a member that ever has NaN weights is NaN
    throughout.
    """
    members = next(iter(params.values())).shape[0]
    close = market.close.double()
    valid = torch.ones(members, 1, dtype=torch.bool, device=close.device)
    turbulent = turbulent_bars(market.turbulence, config.turbulence_limit)
    if (bounds := active_mandate(mandate)) is None:
        accounts = None
    else:
        table = MandateTable(market, bounds, bars_per_year(market.times), torch.float64)
        accounts = MandateAccounts(table, config.leverage)

    tracker, rules = AccountTracker(config, mandate), rules_of(config)
    fill = close if tracker.is_empty else Venue(market, rules, torch.float64).fill

    def decide(t: int, cash: Tensor, shares: Tensor) -> Tensor | None:
        values = shares * close[t]
        equity = (cash + values.sum(-1)).clamp(min=1e-9)
        held = values / equity.unsqueeze(-1)
        virtual, _, budget = (None, None, None) if accounts is None else accounts.state(held, close[t])
        extras = tracker.observe(held, equity, fill[t - 1] / close[t - 1], virtual, budget)
        target = decide_from(t, held, equity, extras)
        tracker.decided(target)
        return target

    def decide_from(t: int, held: Tensor, equity: Tensor, extras: Tensor | None) -> Tensor | None:
        if turbulent is not None and bool(turbulent[t]):
            return torch.zeros_like(held)
        rows = slice(max(0, t + 1 - actor.spec.lookback), t + 1)
        inputs = DecisionInputs(market.features[rows], market.tradable[rows], held, extras)
        if accounts is not None:
            scores = tilt_scores(actor, params, inputs, config)
            valid.logical_and_(torch.isfinite(scores).all(-1, keepdim=True))
            return accounts.decide(t, torch.where(valid, scores, 0.0), held, close[t])
        weights = target_weights(actor, params, inputs, equity, close[t], config)
        valid.logical_and_(torch.isfinite(weights).all(-1, keepdim=True))
        return torch.where(valid, weights, 0.0)

    ledger = simulate(market, decide, first, last, rules, config.cash, batch=members)
    return replace(ledger, equity=torch.where(valid[:, 0], ledger.equity, torch.nan))


def score_members(
    actor: Actor,
    params: Mapping[str, Tensor],
    market: MarketTensor,
    config: EnvironmentConfig,
    first: int,
    last: int,
    mandate: MandateConfig | None = None,
) -> list[dict[str, float]]:
    """Metrics of each member over bars first to last; all NaN for a member that had NaN weights."""
    return metrics_of(run_members(actor, params, market, config, first, last, mandate), market)


def metrics_of(ledger: Ledger, market: MarketTensor) -> list[dict[str, float]]:
    """Metrics of each account of a ledger on a market; all NaN where its equity is not finite."""
    periods_per_year = bars_per_year(market.times)
    columns = (ledger.equity, ledger.turnover, ledger.costs)
    equity, turnover, costs = (x.cpu().numpy() for x in columns)
    risk_free = None if ledger.risk_free is None else ledger.risk_free.cpu().numpy()
    return [
        summary(equity[:, p], turnover[:, p], costs[:, p], periods_per_year, risk_free)
        if np.isfinite(equity[:, p]).all()
        else dict(NO_METRICS)
        for p in range(equity.shape[1])
    ]
