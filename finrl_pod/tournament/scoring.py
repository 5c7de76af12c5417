"""Scores of the members of a generation, for every algorithm.

`MarketScorer`: the Sharpe ratio of a float64 backtest on validation. `EpisodeScorer`: the mean return of
evaluation episodes, on environments without a market.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from finrl_pod.evaluate.backtest import AccountCurves
from finrl_pod.evaluate.metrics import excess_returns
from finrl_pod.protocols import VecEnv
from finrl_pod.random import key
from finrl_pod.rl.acting import SimulateMembers, metrics_of, run_members
from finrl_pod.rl.experience import episode_returns
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.run import RunConfig
from finrl_pod.types import Floats, MarketTensor, Tensor

EVALUATION = "evaluation"  # purpose of the random stream


class MemberResults(NamedTuple):
    """Results of P members on validation.

    scores: [P], NaN without a number. metrics: name -> value of each. equity: [T, P] marks of the accounts, empty
    without a market. returns: [K, P] by bar in excess of cash, or by episode; NaN for a member without a score. base:
    [K], returns of the base portfolio, None without a market.
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

    market: stored in CPU memory: a backtest checks numbers at every bar and would wait for a GPU. validation:
    its first and last bar. simulate: simulates the accounts of the members.
    """

    market: MarketTensor
    config: RunConfig
    validation: tuple[int, int]
    simulate: SimulateMembers = run_members

    def __call__(self, learner: Learner) -> MemberResults:
        algorithm = learner.algorithm
        config = self.config
        weights = {name: tensor.cpu() for name, tensor in algorithm.weights().items()}
        accounts = self.simulate(
            algorithm.actor, weights, self.market, config.environment, *self.validation, config.mandate
        )
        metrics = metrics_of(accounts, self.market)
        return MemberResults(
            [values["sharpe"] for values in metrics],
            metrics,
            accounts.equity.numpy(),
            member_returns(accounts),
            base_returns(self.market, accounts.first, accounts.last, accounts.risk_free),
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
        returns, _ = episode_returns(self.make_env([0] * members), learner.act, key(self.seed, 0, EVALUATION))
        columns = returns.T.numpy()  # [episodes, P]
        metrics = [{"mean_return": float(row.mean()), "std_return": float(row.std(correction=0))} for row in returns]
        return MemberResults([x["mean_return"] for x in metrics], metrics, columns[:0], columns, None)


def member_returns(accounts: AccountCurves) -> Floats:
    """Returns [L-1, P] of accounts; NaN for one whose equity is not finite."""
    equity = accounts.equity.cpu().numpy()
    risk_free = None if accounts.risk_free is None else accounts.risk_free.cpu().numpy()
    returns = np.full((len(equity) - 1, equity.shape[1]), np.nan)
    finite = np.isfinite(equity).all(0)
    returns[:, finite] = excess_returns(equity[:, finite], risk_free)
    return returns


def base_returns(market: MarketTensor, first: int, last: int, risk_free: Tensor | None = None) -> Floats:
    """Returns [L-1] of the base portfolio over the bars first..last, rebalanced at every close without costs.

    Equal weights of the tradable assets if the market has no base. risk_free: [L-1], return of cash.
    """
    close = market.close[first : last + 1].double().cpu().numpy()
    if market.base is not None:
        weights = market.base[first:last].double().cpu().numpy()
    else:
        tradable = market.tradable[first:last].double().cpu().numpy()
        weights = tradable / np.maximum(tradable.sum(1, keepdims=True), 1.0)
    returns: Floats = (weights * (close[1:] / close[:-1] - 1)).sum(1)
    return returns if risk_free is None else returns - risk_free.cpu().numpy()
