"""Weights of a linear policy from a closed form instead of training, and agents with them: the same for every seed.

A linear policy under a mandate is nearly a portfolio of its features: the account that tilts by a weighted sum of
features earns about the weighted sum of what the accounts earn that tilt by one feature each. So the weights follow
from a mean-variance problem of F accounts (Brandt, Santa-Clara and Valkanov 2009, "Parametric portfolio policies"):

    min over x:  1/2 x'(C + I) x - m'x + k'|x|,        weights w_i = x_i / s_i

alpha_i = gross active return of account i less its beta times the base; s_i its standard deviation; C the correlations
of the alphas; m_i = mean(alpha_i) / s_i; k_i = mean cost of the tilt / s_i. The identity shrinks the weights; the L1
term removes features that do not earn what their trades cost. Only the direction of w is used: scores over tradable
training entries get the standard deviation `SCORE_SCALE`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Unpack

import numpy as np
import torch

from finrl_pod.data.blocks import row_blocks
from finrl_pod.evaluate.metrics import simple_returns
from finrl_pod.evaluate.significance import regression_slope
from finrl_pod.market.mandate import without_name_limits
from finrl_pod.market.protocols import MarketVecEnv
from finrl_pod.memory import release_mapped_pages
from finrl_pod.random import generators
from finrl_pod.rl.acting import MeanActor, SimulateMembers, run_members
from finrl_pod.rl.algorithms.base import Algorithm, Metrics, Population
from finrl_pod.rl.experience import RolloutCollector
from finrl_pod.rl.networks.policies import LINEAR, PolicySpec, make_policy, with_start
from finrl_pod.rl.optimisation.optimiser import CRITIC_PREFIXES, Parameters, RateFactor
from finrl_pod.settings.algorithm_configs import ClosedFormConfig
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import Bools, Floats, MarketTensor, Observation, Tensor

TILT_SCORE = 0.2  # score of an account for one standard deviation of its feature
SCORE_SCALE = 0.7  # standard deviation of the scores of the solved policy
RIDGE = 1.0  # weight of the identity beside the correlations
HORIZON = 21  # bars of the returns that `regression_weights` predicts
FOLDS = 5
# Of the regression, relative to the mean square of a feature. The first of equally good ones is taken.
PENALTIES = (1e4, 1e3, 1e2, 1e1, 1.0, 1e-1, 1e-2)
SWEEPS = 300  # of coordinate descent; 10 features converge within 50
MIN_RELATIVE_RISK = 1e-6  # of the alpha of a feature, relative to the riskiest; below it the feature tilts nothing


@dataclass(frozen=True, eq=False)
class TiltReturns:
    """Simple returns by bar of the accounts that tilt by one feature each.

    base: [T], of the account with all scores zero, without costs. gross, net: [F, T], active returns over that account,
    without and with costs.
    """

    base: Floats
    gross: Floats
    net: Floats

    def at(self, bars: Bools) -> TiltReturns:
        """The returns of some bars. bars: [T] bool."""
        return TiltReturns(self.base[bars], self.gross[:, bars], self.net[:, bars])


def tilt_returns(
    market: MarketTensor,
    environment: EnvironmentConfig,
    mandate: MandateConfig,
    first: int,
    last: int,
    simulate: SimulateMembers = run_members,
) -> TiltReturns:
    """Trade F + 1 accounts through a mandate from bar first to last, once with costs and once without.

    They hold any number of names: accounts of few are no sums of others.
    Account 0 has scores of zero, account i scores of `TILT_SCORE` times feature i. T = last - first.
    """
    _, assets, features = market.shape
    spec = PolicySpec("linear", assets, features, assets, (), action="tilt")
    weights = torch.cat([torch.zeros(1, features), TILT_SCORE * torch.eye(features)]).to(market.features)
    free = dataclasses.replace(
        environment,
        cost_bps=0.0,
        half_spread="constant",
        half_spread_bps=0.0,
        per_share=0.0,
        per_share_minimum=0.0,
        cost_model="",
        impact=0.0,
    )
    ledgers = (
        simulate(MeanActor(spec), {LINEAR: weights}, market, rules, first, last, without_name_limits(mandate))
        for rules in (environment, free)
    )
    net_returns, gross_returns = (simple_returns(ledger.equity.cpu().numpy()).T for ledger in ledgers)  # [1 + F, T]
    return TiltReturns(gross_returns[0], gross_returns[1:] - gross_returns[0], net_returns[1:] - net_returns[0])


def solve(returns: TiltReturns, ridge: float = RIDGE) -> Floats:
    """Weights [F] of the features, up to a positive factor; 0 for features that do not tilt or do not pay.

    Coordinate descent on the problem in the head of this file. ridge: factor of the identity.
    """
    beta = regression_slope(returns.gross.T, returns.base)
    alpha = returns.gross - beta[:, None] * returns.base
    covariance = np.atleast_2d(np.cov(alpha))
    risk = np.sqrt(np.diag(covariance))
    tilts = risk > MIN_RELATIVE_RISK * risk.max(initial=0.0)
    weights = np.zeros(len(risk))
    if not tilts.any():
        return weights
    risk = risk[tilts]
    mean = alpha[tilts].mean(1) / risk
    cost = np.maximum((returns.gross - returns.net)[tilts].mean(1), 0.0) / risk
    curvature = covariance[np.ix_(tilts, tilts)] / np.outer(risk, risk) + ridge * np.eye(len(risk))
    x = np.zeros(len(risk))
    for _ in range(SWEEPS):
        for i in range(len(x)):
            slope = mean[i] - curvature[i] @ x + curvature[i, i] * x[i]
            x[i] = np.sign(slope) * max(abs(slope) - cost[i], 0.0) / curvature[i, i]
    weights[tilts] = x / risk
    return weights


def scaled(weights: Floats, market: MarketTensor, first: int, last: int) -> Tensor:
    """Weights [.., F] in the dtype of the features whose scores have the standard deviation `SCORE_SCALE`.

    Over the tradable entries of the bars first to last. Weights that score all entries alike become 0.
    """
    columns = torch.from_numpy(np.atleast_2d(weights).T.copy()).to(market.close.device)  # [F, K]
    count = 0
    mean = columns.new_zeros(columns.shape[1])
    squares = torch.zeros_like(mean)  # of deviations from the mean
    for block in row_blocks((last + 1 - first, *market.shape[1:])):
        rows = slice(first + block.start, first + block.stop)
        scores = (market.features[rows].double() @ columns)[market.tradable[rows]]  # [M, K]
        release_mapped_pages()
        if not len(scores):
            continue
        shift = scores.mean(0) - mean
        share = len(scores) / (count + len(scores))
        squares += (scores - scores.mean(0)).square().sum(0) + shift.square() * (count * share)
        mean += shift * share
        count += len(scores)
    spread = (squares / max(count - 1, 1)).sqrt().cpu().numpy()
    factors = np.divide(SCORE_SCALE, spread, out=np.zeros_like(spread), where=spread > 0)
    return torch.from_numpy(weights * factors.reshape(*weights.shape[:-1], 1)).to(market.features)


def solved_weights(
    market: MarketTensor,
    environment: EnvironmentConfig,
    mandate: MandateConfig,
    first: int,
    last: int,
    simulate: SimulateMembers = run_members,
) -> Tensor:
    """Weights [F] of the linear policy that is solved on the decision bars first to last."""
    tilts = tilt_returns(market, environment, mandate, first, last + 1, simulate)
    return scaled(solve(tilts), market, first, last)


def regression_weights(market: MarketTensor, first: int, last: int, embargo: int) -> Floats:
    """Weights [F] of a ridge regression of returns on features; it reads no price after the bar `last`.

    The returns last `HORIZON` bars from the fill of a bar. Features and returns are relative to their mean over the
    assets. The penalty has the least squared error over five blocks of bars, each predicted without the bars whose
    returns overlap its own, and without `embargo` more on either side.
    """
    count = len(market.feature_names)
    is_open = market.tradable & market.fillable
    returns = market.fill[HORIZON:] / market.fill[:-HORIZON] - 1
    bars = range(first, last - HORIZON)  # a decision is filled a bar later
    moments = np.zeros((len(bars), count + 1, count + 1))
    for block in row_blocks((len(bars), market.shape[1], count + 1)):
        t = slice(first + block.start, first + block.stop)
        rows = torch.cat([market.features[t].double(), returns[t].unsqueeze(-1)], -1)  # [B, N, F + 1]
        mask = is_open[t].unsqueeze(-1)
        rows = torch.where(mask, rows, 0.0)
        mean = rows.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        deviations = torch.where(mask, rows - mean, 0.0)
        moments[block] = torch.bmm(deviations.transpose(1, 2), deviations).cpu().numpy()
    edges = [len(bars) * i // FOLDS for i in range(FOLDS + 1)]
    purge = HORIZON + embargo

    def squared_error(penalty: float) -> float:
        error = 0.0
        for begin, end in pairwise(edges):
            training = moments[: max(begin - purge, 0)].sum(0) + moments[end + purge :].sum(0)
            residual = np.append(_ridge(training, penalty), -1.0)
            error += float(residual @ moments[begin:end].sum(0) @ residual)
        return error

    return _ridge(moments.sum(0), min(PENALTIES, key=squared_error))


def _ridge(moments: Floats, penalty: float) -> Floats:
    """Weights [F] of moments [F + 1, F + 1] of the features and of what they predict, the last column."""
    squares = moments[:-1, :-1]
    shrinkage = penalty * np.trace(squares) / len(squares)
    weights: Floats = np.linalg.lstsq(squares + shrinkage * np.eye(len(squares)), moments[:-1, -1])[0]
    return weights


class ClosedForm(Algorithm):
    """P members with the same solved weights. An iteration changes nothing and steps no environment."""

    MEMBER_SETTINGS: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, spec: PolicySpec, env: MarketVecEnv, config: ClosedFormConfig, **population: Unpack[Population]
    ) -> None:
        self.spec = spec
        self.env = env
        self.config = config
        self.dtype = population["dtype"]
        self.policy = make_policy(spec)
        self.settings = {}
        members = population["members"]
        self.alive = torch.ones(len(members), dtype=torch.bool, device=env.device)
        initial = [self.policy.init(generator, self.dtype) for generator in generators(0, members, "initial weights")]
        actor = [
            {name: x for name, x in tensors.items() if not name.startswith(CRITIC_PREFIXES)}
            for tensors in with_start(initial, population["start"])
        ]
        self.parameters = Parameters(actor, env.device)

    @property
    def steps_per_iteration(self) -> int:
        return 1

    def iterate(self, collector: RolloutCollector, rate_factor: RateFactor) -> Metrics:  # noqa: ARG002
        return {"reward": torch.zeros(len(self.alive))}

    @torch.no_grad()
    def greedy(self, observation: Observation) -> Tensor:
        bar, account = observation
        p, groups = bar.shape
        market = self.env.market
        account = account.view(p, groups, -1, account.shape[-1]).to(self.dtype)
        mean = self.policy.mean(self.weights(), market.features[bar].to(self.dtype), account, market.tradable[bar])
        return mean.reshape(p, -1, mean.shape[-1])

    def weights(self) -> dict[str, Tensor]:
        return self.parameters.detached()

    def member(self, p: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return self.parameters.member(p), {}

    def load_member(self, p: int, weights: Mapping[str, Tensor], training_state: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        self.parameters.load(p, weights)
