"""`finrl-pod train --market`: trains the agents of a market, scores them against its optimum and saves a folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from finrl_pod_envs.multi_agent.execution import ExecutionMarket
from finrl_pod_envs.multi_agent.making import MakingMarket

from finrl_pod.errors import ConfigError
from finrl_pod.market.optimal_execution import best_response_gains, equilibrium
from finrl_pod.market.optimal_quotes import evaluate_quotes, solve_quotes, visited_inventories
from finrl_pod.rl.multi_agent.training import (
    JointPolicy,
    MultiAgentAlgorithm,
    check_algorithm,
    default_ppo,
    layout_of,
)
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import AgentConfig
from finrl_pod.settings.constraints import describe_settings
from finrl_pod.settings.multi_agent import ExecutionMarketConfig, MADDPGConfig
from finrl_pod.settings.toml import build_record
from finrl_pod.tournament.progress import ProgressCallback
from finrl_pod.types import Floats, JointObservation
from finrl_pod_app.environment_training.config import TrainingConfig
from finrl_pod_app.environment_training.environments import make_market
from finrl_pod_app.environment_training.folder import MarketScores, TrainingResult
from finrl_pod_app.environment_training.training import SAVE_SECONDS, train
from finrl_pod_app.multi_agent.recipes import RECIPES
from finrl_pod_app.setup.overrides import parse_setting

T = TypeVar("T")
EPISODES = 256  # markets with random orders over which a score is averaged


@dataclass(frozen=True, eq=False)
class QuoteScore:
    """Quotes of a maker, [N, 2Q + 1], and how near they are to the optimum of the simulated steps.

    share: value at inventory 0 relative to the optimum. visited: [2Q + 1], share of time at each inventory.
    """

    bid: Floats
    ask: Floats
    share: float
    visited: Floats

    @property
    def spread(self) -> float:
        """Quoted spread at the start without inventory."""
        middle = self.bid.shape[1] // 2
        return float(self.bid[0, middle] + self.ask[0, middle])


def execution_trades(policy: JointPolicy, market: ExecutionMarket, seed: int = 0) -> tuple[Floats, Floats]:
    """Orders [E, M] and greedy trades [E, M, N steps] of member 0 in the first asset, over one episode."""
    observation = market.reset(seed)
    orders = market.left[0, :, :, 0].double().numpy()
    trades = []
    for j in range(market.config.steps):
        remaining = market.left[0, :, :, 0].clone()
        observation = market.step(policy.act(observation)).observation
        last = j == market.config.steps - 1  # the next episode has begun
        trades.append(remaining if last else remaining - market.left[0, :, :, 0])
    return orders, torch.stack(trades, -1).double().numpy()


def excess_cost(orders: Floats, trades: Floats, market: ExecutionMarket, cooperation: float) -> float:
    """Mean cost + risk of all agents relative to the optimum (a team) or equilibrium, minus 1.

    orders [E, M], trades [E, M, N]. The cost that no schedule changes, permanent (sum of orders)^2 / 2, is left out.
    """
    game = market.game()
    agents = orders.shape[1]
    # The solution is linear in the orders: one per unit order of an agent.
    unit = np.stack([equilibrium(np.eye(agents)[i], game, cooperation) for i in range(agents)])  # [M, M, N]
    best = np.einsum("em,mkn->ekn", orders, unit)
    fixed_cost = market.config.permanent * orders.sum(-1) ** 2 / 2
    cost, optimal_cost = (float((game.objectives(orders, x).sum(-1) - fixed_cost).mean()) for x in (trades, best))
    return cost / optimal_cost - 1


def exploitability(orders: Floats, trades: Floats, market: ExecutionMarket) -> Floats:
    """What each agent would gain by his best response, over the cost of the largest order: [M]. One market [M, N]."""
    game = market.game()
    largest = np.abs(orders).argmax()
    return np.asarray(best_response_gains(orders, trades, game) / game.objectives(orders, trades)[largest])


def quote_score(policy: JointPolicy, market: MakingMarket) -> QuoteScore:
    """Greedy quotes of a single maker at all times and inventories, and their exact value among noise traders."""
    config = market.config
    steps = config.steps
    levels = 2 * config.max_inventory + 1
    inventories = torch.arange(-config.max_inventory, config.max_inventory + 1)
    time = torch.arange(steps, 0, -1) / steps
    rows = torch.cat(
        [
            time.view(steps, 1, 1).expand(steps, levels, 1),
            (inventories / config.max_inventory).view(1, levels, 1).expand(steps, levels, 1),
            torch.eye(levels).expand(steps, levels, levels),
        ],
        -1,
    ).reshape(1, steps * levels, 1, -1)
    state = rows[:, :, 0, :2]  # time left and the inventory
    quotes = market.distances(policy.act(JointObservation(rows, state)))
    bid, ask = (x.double().numpy() for x in quotes.view(steps, levels, 2).unbind(-1))
    problem = market.problem()
    middle = config.max_inventory
    share = evaluate_quotes(problem, bid, ask)[0, middle] / solve_quotes(problem, steps).value[0, middle]
    return QuoteScore(bid, ask, float(share), visited_inventories(problem, bid, ask))


@dataclass(frozen=True)
class MarketTraining:
    """What to train. algorithm, samples, envs: None for the values of the recipe.

    settings: "name=value" of the agent, "market.name=value" of the market.
    """

    market: str
    algorithm: str | None = None
    samples: int | None = None
    envs: int | None = None
    settings: Sequence[str] = ()
    seed: int = 0
    threads: int = 1


def train_market(
    training: MarketTraining,
    out: Path,
    *,
    resume: bool = False,
    save_seconds: float = SAVE_SECONDS,
    progress: ProgressCallback = lambda _: None,
) -> TrainingResult:
    """Train the agents of a built-in market as `environment_training.training.train`, and score them.

    Raises ConfigError for settings that do not fit, else as `train`.
    """
    config = market_config(training)
    return train(
        config, out, resume=resume, save_seconds=save_seconds, evaluation=0, progress=progress,
        score=lambda learner: score(learner, config),
    )  # fmt: skip


def score(learner: Learner, config: TrainingConfig) -> MarketScores:
    """Exact scores of the greedy decisions of the agents of a built-in market."""
    assert config.market is not None
    assert config.many is not None
    has_random_orders = isinstance(config.market, ExecutionMarketConfig) and config.market.order_std > 0
    market = make_market(config.market, envs=EPISODES if has_random_orders else 1)
    policy = JointPolicy(learner, layout_of(market, config.many, shared=config.is_shared))
    if isinstance(market, MakingMarket):
        if market.agents > 1:
            return MarketScores()
        quotes = quote_score(policy, market)
        return MarketScores(
            share_of_optimum=quotes.share,
            spread=quotes.spread,
            bid=quotes.bid[0].tolist(),
            ask=quotes.ask[0].tolist(),
            visited=quotes.visited.tolist(),
        )
    orders, trades = execution_trades(policy, market)
    first = np.concatenate([orders[0][:, None], orders[0][:, None] - np.cumsum(trades[0], -1)], -1)
    is_game = market.agents > 1 and not market.config.cooperation
    return MarketScores(
        excess_cost=excess_cost(orders, trades, market, market.config.cooperation),
        holdings=first.tolist(),
        best_response_gain=exploitability(orders[0], trades[0], market).tolist() if is_game else None,
    )


def market_config(training: MarketTraining) -> TrainingConfig:
    """The recipe of the market with the changes of the training."""
    if training.market not in RECIPES:
        raise ConfigError(f"--market must be one of {', '.join(RECIPES)}, got {training.market!r}")
    plan = RECIPES[training.market]
    algorithm = training.algorithm or plan.algorithm
    check_algorithm(algorithm, None)
    agent: AgentConfig = plan.agent
    if (algorithm == "maddpg") != isinstance(agent, MADDPGConfig):
        agent = MADDPGConfig(hidden=(64, 64), learning_starts=0) if algorithm == "maddpg" else default_ppo()
    market = plan.market
    for line in training.settings:
        name, value = parse_setting(line)
        section, _, key = name.rpartition(".")
        if section in ("", "agent") and key in describe_settings(type(agent)):
            agent = _with_value(agent, "agent", key, value)
        elif section in ("", "market") and key in describe_settings(type(market)):
            market = _with_value(market, "market", key, value)
        else:
            raise ConfigError(
                f"--set has no setting {name!r}; the agent has {', '.join(describe_settings(type(agent)))}, and the "
                f"market (as market.NAME) has {', '.join(describe_settings(type(market)))}"
            )
    return TrainingConfig(
        env=training.market,
        agent=agent,
        steps=plan.samples if training.samples is None else training.samples,
        envs=plan.envs if training.envs is None else training.envs,
        seed=training.seed,
        threads=max(1, training.threads),
        many=cast(MultiAgentAlgorithm, algorithm),
        is_shared=plan.shared and algorithm != "league",
        market=market,
    )


def _with_value(record: T, section: str, name: str, value: Any) -> T:
    """A record of settings with another value. Raises ConfigError for a value of another type."""
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}  # type: ignore[arg-type]
    result: T = build_record(type(record), {**values, name: value}, "--set", section_name=section)
    return result
