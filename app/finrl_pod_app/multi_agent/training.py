"""`finrl-pod train --market`: trains the agents of a market, scores them against its optimum and saves a folder."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from finrl_pod_envs.multi_agent.execution import ExecutionMarket
from finrl_pod_envs.multi_agent.making import MakingMarket

from finrl_pod.errors import ConfigError, RunError
from finrl_pod.files import write_bytes, write_json
from finrl_pod.market.optimal_execution import best_response_gains, equilibrium
from finrl_pod.market.optimal_quotes import evaluate_quotes, solve_quotes, visited_inventories
from finrl_pod.rl.multi_agent.training import MULTI_AGENT_ALGORITHMS, JointPolicy, default_ppo, train_agents
from finrl_pod.settings.constraints import describe_settings
from finrl_pod.settings.multi_agent import ExecutionMarketConfig, MADDPGConfig
from finrl_pod.settings.toml import build_record
from finrl_pod.types import Floats, JointObservation
from finrl_pod_app.multi_agent.recipes import RECIPES, Recipe
from finrl_pod_app.setup.output_folder import check_room
from finrl_pod_app.setup.overrides import parse_setting

T = TypeVar("T")
CONFIG = "config.json"
RESULT = "result.json"
WEIGHTS = "weights.safetensors"
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


@dataclasses.dataclass(frozen=True)
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


def train_market(
    training: MarketTraining, out: Path, progress: Callable[[int, int], None] = lambda _, __: None
) -> dict[str, Any]:
    """Train, score and save; returns the contents of result.json. progress(samples, total).

    Raises ConfigError for settings that do not fit, RunError if the folder holds a run.
    """
    from safetensors.torch import save as to_bytes

    plan = _plan(training)
    if (out / CONFIG).exists():
        raise RunError(f"{out} already holds a run; name another folder")
    check_room(out)
    market = plan.training_market()
    begin = time.perf_counter()
    policy = train_agents(
        market, plan.algorithm, plan.agent, samples=plan.samples, shared=plan.shared, seed=training.seed,
        progress=lambda samples, _: progress(samples, plan.samples),
    )  # fmt: skip
    result = {
        "market": training.market,
        "algorithm": plan.algorithm,
        "samples": plan.samples,
        "seed": training.seed,
        "seconds": round(time.perf_counter() - begin, 2),
        **score(policy, plan),
    }
    out.mkdir(parents=True, exist_ok=True)
    config = {"market": dataclasses.asdict(plan.market), "agent": dataclasses.asdict(plan.agent)}
    write_json(out / CONFIG, {**dataclasses.asdict(training), **config})
    write_bytes(out / WEIGHTS, to_bytes({name: x.cpu().contiguous() for name, x in policy.weights().items()}))
    write_json(out / RESULT, result)
    return result


def score(policy: JointPolicy, plan: Recipe) -> dict[str, Any]:
    """Exact scores of the greedy decisions of a policy, as plain values.

    Execution: excess cost over optimum or equilibrium, holdings of the first market, gains by best responses. Making:
    share of the optimal value among noise traders, and the quotes at the start.
    """
    has_random_orders = isinstance(plan.market, ExecutionMarketConfig) and plan.market.order_std > 0
    market = plan.make_market(envs=EPISODES if has_random_orders else 1)
    if isinstance(market, MakingMarket):
        if market.agents > 1:
            return {}
        quotes = quote_score(policy, market)
        return {
            "share_of_optimum": quotes.share,
            "spread": quotes.spread,
            "bid": quotes.bid[0].tolist(),
            "ask": quotes.ask[0].tolist(),
            "visited": quotes.visited.tolist(),
        }
    orders, trades = execution_trades(policy, market)
    first = np.concatenate([orders[0][:, None], orders[0][:, None] - np.cumsum(trades[0], -1)], -1)
    result: dict[str, Any] = {
        "excess_cost": excess_cost(orders, trades, market, market.config.cooperation),
        "holdings": first.tolist(),
    }
    if market.agents > 1 and not market.config.cooperation:
        result["best_response_gain"] = exploitability(orders[0], trades[0], market).tolist()
    return result


def _plan(training: MarketTraining) -> Recipe:
    """The recipe of the market with the changes of the training."""
    if training.market not in RECIPES:
        raise ConfigError(f"--market must be one of {', '.join(RECIPES)}, got {training.market!r}")
    plan = RECIPES[training.market]
    algorithm = training.algorithm or plan.algorithm
    if algorithm not in MULTI_AGENT_ALGORITHMS:
        raise ConfigError(f"--algorithm must be one of {', '.join(MULTI_AGENT_ALGORITHMS)}, got {algorithm!r}")
    agent = plan.agent
    if (algorithm == "maddpg") != isinstance(agent, MADDPGConfig):
        agent = MADDPGConfig(hidden=(64, 64), learning_starts=0) if algorithm == "maddpg" else default_ppo()
    market = plan.market
    is_shared = plan.shared and algorithm != "league"
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
    samples = plan.samples if training.samples is None else training.samples
    if samples < 1:
        raise ConfigError(f"--steps must be at least 1, got {samples}")
    envs = plan.envs if training.envs is None else training.envs
    if envs < 1:
        raise ConfigError(f"--envs must be at least 1, got {envs}")
    return Recipe(market, agent, envs, samples, algorithm, is_shared)


def _with_value(record: T, section: str, name: str, value: Any) -> T:
    """A record of settings with another value. Raises ConfigError for a value of another type."""
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}  # type: ignore[arg-type]
    result: T = build_record(type(record), {**values, name: value}, "--set", section_name=section)
    return result
