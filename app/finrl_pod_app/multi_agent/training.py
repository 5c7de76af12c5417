"""`finrl-pod train --market`: trains the agents of a market, scores them exactly and saves a folder.

config.json holds the settings, weights.safetensors the actors' networks, result.json the scores, schedules and quotes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from finrl_pod_envs.multi_agent.making import MakingMarket

from finrl_pod.errors import ConfigError, RunError
from finrl_pod.files import write_bytes, write_json
from finrl_pod.rl.multi_agent.training import MULTI_AGENT_ALGORITHMS, JointPolicy, default_ppo, train_agents
from finrl_pod.settings.constraints import describe_settings
from finrl_pod.settings.multi_agent import ExecutionMarketConfig, MADDPGConfig
from finrl_pod.settings.toml import build_record
from finrl_pod_app.multi_agent.evaluation import excess_cost, execution_trades, exploitability, quote_score
from finrl_pod_app.multi_agent.recipes import Recipe, recipe
from finrl_pod_app.setup.overrides import parse_setting

T = TypeVar("T")
CONFIG, RESULT, WEIGHTS = "config.json", "result.json", "weights.safetensors"
EPISODES = 256  # markets with random orders over which a score is averaged


@dataclasses.dataclass(frozen=True)
class MarketTraining:
    """What to train. algorithm, samples, envs: None for the recipe's.

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
    """Exact scores of a policy's greedy decisions, as plain values.

    Execution: excess cost over optimum or equilibrium, holdings of the first market, gains by best responses. Making:
    share of the optimum's value among noise traders, and the quotes at the start.
    """
    market = plan.make_market(envs=EPISODES if _has_random_orders(plan) else 1)
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


def _has_random_orders(plan: Recipe) -> bool:
    return isinstance(plan.market, ExecutionMarketConfig) and plan.market.order_std > 0


def _plan(training: MarketTraining) -> Recipe:
    """The market's recipe with the changes of the training."""
    plan = recipe(training.market)
    algorithm = training.algorithm or plan.algorithm
    if algorithm not in MULTI_AGENT_ALGORITHMS:
        raise ConfigError(f"--algorithm must be one of {', '.join(MULTI_AGENT_ALGORITHMS)}, got {algorithm!r}")
    agent = plan.agent
    if (algorithm == "maddpg") != isinstance(agent, MADDPGConfig):
        agent = MADDPGConfig(hidden=(64, 64), learning_starts=0) if algorithm == "maddpg" else default_ppo()
    market, shared = plan.market, plan.shared and algorithm != "league"
    for line in training.settings:
        name, value = parse_setting(line)
        section, _, key = name.rpartition(".")
        if section in ("", "agent") and key in describe_settings(type(agent)):
            agent = _changed(agent, "agent", key, value)
        elif section in ("", "market") and key in describe_settings(type(market)):
            market = _changed(market, "market", key, value)
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
    return Recipe(market, agent, envs, samples, algorithm, shared)


def _changed(record: T, section: str, name: str, value: Any) -> T:
    """A record of settings with another value. Raises ConfigError for a value of another type."""
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}  # type: ignore[arg-type]
    changed: T = build_record(type(record), {**values, name: value}, "--set", place=section)
    return changed
