"""The solved policy that agents start from, and how long they may train away from it.

Five folds of the training split choose the number of updates: each solves and trains without one block of bars and is
scored on it. The number with the highest information ratio of all held-out bars is used.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from finrl_pod_envs.member_accounts import simulate_members
from finrl_pod_envs.rollout import can_roll_out, roll_out
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.data.splits import REWARD_LAG, Splits
from finrl_pod.evaluate.metrics import bars_per_year, simple_returns
from finrl_pod.evaluate.significance import regression_slope
from finrl_pod.native.device import one_thread
from finrl_pod.random import key
from finrl_pod.rl.acting import Actor, BarActions, MeanActor
from finrl_pod.rl.algorithms.closed_form import TiltReturns, scaled, solve, tilt_returns
from finrl_pod.rl.algorithms.factory import is_solved
from finrl_pod.rl.networks.layers import Params
from finrl_pod.rl.networks.policies import LINEAR, PolicySpec
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import ClosedFormConfig, TrainedAgentConfig
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.progress import Progress, ProgressCallback
from finrl_pod.tournament.run_directory import RunDirectory, StartFold, StartFolds
from finrl_pod.tournament.scoring import MarketScorer
from finrl_pod.types import Floats, MarketTensor, Tensor
from finrl_pod_app.prices.market_setup import training_env

FOLDS = 5
SHARES = (0.125, 0.25, 0.5, 1.0)  # of the training budget that are compared
STAGE = "choosing the number of updates on five folds of the training split"


def prepare_start(
    config: RunConfig, run: RunDirectory, market: MarketTensor, splits: Splits, progress: ProgressCallback
) -> None:
    """Solve and save the policy that the agents of a run start from, and choose the samples of its pods.

    Does nothing for a run whose agents start from new weights, and for one that has saved it. market: stored in CPU
    memory.
    """
    agents = (config.agent, *config.cohorts)
    if run.has_start or not any(isinstance(agent, TrainedAgentConfig) and is_solved(agent) for agent in agents):
        return
    env = training_env(config, market, splits, (0,))
    terms = (config.environment, config.mandate, env.first, env.last + 1)
    tilts = tilt_returns(market, *terms, simulate_members)
    weights = scaled(solve(tilts), market, env.first, env.last)
    start = Learner(env, ClosedFormConfig(), start=weights)
    scorer = MarketScorer(market, config, (splits.validation.first, splits.validation.last), simulate_members)
    returns = scorer(start).returns[:, 0]
    samples_per_generation = config.tournament.samples_per_generation
    folds = []
    samples = [samples_per_generation] * len(agents)
    for i, agent in enumerate(agents):
        if isinstance(agent, TrainedAgentConfig) and is_solved(agent):
            fold = score_updates(config, agent, market, splits, tilts, progress, cohort=i)
            samples[i] = math.ceil(samples_per_generation * fold.chosen)
            folds.append(fold)
    run.save_start(start.snapshot(), returns, StartFolds(tuple(samples), tuple(folds)))


def score_updates(
    config: RunConfig,
    agent: TrainedAgentConfig,
    market: MarketTensor,
    splits: Splits,
    tilts: TiltReturns,
    progress: ProgressCallback = lambda _: None,
    *,
    cohort: int = 0,
) -> StartFold:
    """Train an agent on five purged folds and score it on the held-out blocks after each share of its budget.

    Bars within the embargo of a block are not used for its fold. tilts: returns of tilts at the decision bars of the
    training split.
    """
    first = max(splits.train.first, market.first)
    last = splits.train.last - REWARD_LAG
    edges = [first + (last + 1 - first) * i // FOLDS for i in range(FOLDS + 1)]
    blocks = list(pairwise(edges))
    window = min(config.environment.window, (last + 1 - first) // FOLDS)
    starts = [_starts_outside(first, last, block, window, config.splits.embargo) for block in blocks]
    is_short = min(map(len, starts)) == 0 or min(b - a for a, b in blocks) < 3
    if is_short or getattr(agent, "horizon", 1) > window:  # the agents keep the smallest share of their updates
        return StartFold(cohort, math.nan, (), (), SHARES[0])
    env = make_env(
        market,
        dataclasses.replace(config.environment, window=window),
        members=range(FOLDS),
        first=first,
        last=last,
        mandate=config.mandate,
        starts=starts,
    )
    bars = np.arange(first, last + 1)
    embargo = config.splits.embargo
    fold_masks = [(bars < a - embargo) | (bars >= b + embargo) for a, b in blocks]
    solved_weights = scaled(np.stack([solve(tilts.at(mask)) for mask in fold_masks]), market, first, last)
    learner = Learner(env, agent, seed=key(config.seed, 0, "folds"), threads=config.threads, start=solved_weights)
    score = _scorer(config, market, blocks, (first, last))
    ratios = []
    start = score(learner)
    settings = config.tournament
    budget = settings.generations * settings.samples_per_generation
    linear = agent.learning_rate_schedule == "linear"
    for share in SHARES:
        samples = math.ceil(share * budget) - learner.samples[0]
        if samples > 0:
            learner.learn(
                samples,
                callback=lambda current, _: progress(
                    Progress(STAGE, current.samples[0] * FOLDS, budget * FOLDS, 0.0, None, None)
                ),
                schedule=lambda age: max(1 - age / budget, 0.0) if linear else 1.0,
            )
        ratios.append(score(learner))
    finite = [ratio if math.isfinite(ratio) else -math.inf for ratio in ratios]
    return StartFold(cohort, start, SHARES, tuple(ratios), SHARES[int(np.argmax(finite))])


def _starts_outside(first: int, last: int, block: tuple[int, int], window: int, embargo: int) -> Tensor:
    """[K] int64, bars at which an episode may start so that it and its last reward avoid a block and its embargo."""
    starts = torch.arange(first, last - window + 2)
    ends = starts + window + REWARD_LAG  # after the last fill
    return starts[(ends <= block[0] - embargo) | (starts >= block[1] + embargo)]


def _scorer(
    config: RunConfig, market: MarketTensor, blocks: Sequence[tuple[int, int]], span: tuple[int, int]
) -> Callable[[Learner], float]:
    """A function that scores the members of a learner, each on one held-out block against the base.

    span: first and last decision bar of the training split.
    """
    length = min(end - begin for begin, end in blocks)
    env = make_env(
        market,
        dataclasses.replace(config.environment, window=length, envs=1, group=1, reward="log_return"),
        members=range(FOLDS),
        first=span[0],
        last=span[1],
        mandate=config.mandate,
        starts=[torch.tensor([begin]) for begin, _ in blocks],
    )
    env.reuse_buffers(True)
    begins = torch.tensor([begin for begin, _ in blocks])
    periods = bars_per_year(market.times)

    def actions_of(actor: Actor, params: Params) -> BarActions:
        return BarActions(actor, params, market, length - 1, begins)

    @torch.no_grad()
    @one_thread()
    def equity_of(actions: Callable[[int, Tensor], Tensor]) -> Floats:
        """Equity [L, FOLDS] of one account on each block."""
        if isinstance(actions, BarActions) and can_roll_out(env, [actions]):
            return torch.cat([bars.equity for bars in roll_out(env, [actions], 0, length)]).double().numpy()
        (_, account) = env.reset(0, stagger=False)
        equity = torch.empty(length, FOLDS, dtype=torch.float64)
        for t in range(length):
            step = env.step(actions(t, account))
            equity[t] = step.equity[:, 0]
            account = step.observation.account
        return equity.numpy()

    (_, assets, features) = market.shape
    zero_scores = MeanActor(PolicySpec("linear", assets, features, assets, (), action="tilt"))
    base = actions_of(zero_scores, {LINEAR: torch.zeros(FOLDS, features)})
    no_tilt = torch.zeros(FOLDS, 1, env.action_size)
    base_returns = simple_returns(equity_of(base if can_roll_out(env, [base]) else lambda *_: no_tilt)).T.ravel()

    def score(learner: Learner) -> float:
        algorithm = learner.algorithm
        equity = equity_of(actions_of(algorithm.actor, algorithm.weights()))
        if not np.isfinite(equity).all():
            return math.nan
        returns = simple_returns(equity).T.ravel()
        active = returns - base_returns
        alpha = active - regression_slope(active, base_returns) * base_returns
        risk = float(alpha.std(ddof=1))
        return float(alpha.mean()) / risk * math.sqrt(periods) if risk > 0 else 0.0  # the information ratio

    return score
