"""Markets with many agents: learned schedules and quotes against the exact optimum of the simulated market.

Results are JSON lines, one per training; existing ones are not repeated, so that a study may be interrupted and several
processes may share a file. Rows are made from what the file holds.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from finrl_pod_app.multi_agent import recipes
from finrl_pod_app.multi_agent.evaluation import excess_cost, execution_trades, exploitability, quote_score
from finrl_pod_app.multi_agent.recipes import Recipe
from finrl_pod_envs.multi_agent.execution import ExecutionMarket
from finrl_pod_envs.multi_agent.making import MakingMarket

from benchmarks.harness.rows import Row
from benchmarks.learning.training import log_progress
from benchmarks.many_agents.intraday import simulated_study
from finrl_pod.errors import ConfigError, RunError
from finrl_pod.market.execution_games import predatory_holdings
from finrl_pod.market.optimal_quotes import best_constant_quote, evaluate_quotes, glft_quotes, solve_quotes
from finrl_pod.rl.multi_agent.training import JointPolicy, train_agents

RESULTS_FILE = Path("benchmarks/markets.jsonl")
URGENCIES = (1.5, 3.0, 6.0)  # kappa T
TRADERS = (2, 5)
SEEDS = range(5)
DESK_ALGORITHMS = ("mappo", "maddpg", "ippo")
DESK_EPISODES, DESK_SEED = 256, 999  # the same orders for every agent
INFORMED = 60.0  # arrivals of informed traders per unit of time
VISITED = 0.01  # quotes are compared at inventories that are held at least that share of the time
DRAWS, LEVEL = 10_000, 0.90
Result = dict[str, Any]


@dataclass(frozen=True)
class MarketStudy:
    """What to run before the rows are read. only: prefixes of the names of trainings; empty for all."""

    run: bool = False
    only: Sequence[str] = ()
    results: Path = RESULTS_FILE


@dataclass(frozen=True)
class Training:
    """A training of the study. name and seed key its result; measure: the policy's numbers for its row."""

    name: str
    seed: int
    recipe: Recipe
    measure: Callable[[JointPolicy, Recipe], Result]


def market_rows(study: MarketStudy) -> list[Row]:
    """Run what the study asks for and is not stored yet; return the rows of all stored results.

    Raises ConfigError if there is nothing to read, RunError for an invalid file.
    """
    if study.run:
        run(trainings(), study)
        _run_intraday(study)
    rows = rows_of(read(study.results))
    if not rows:
        raise ConfigError(f"{study.results} holds no results of markets; add --run, or name another --results file")
    return rows


def trainings() -> list[Training]:
    """All trainings of the study."""
    found = [
        Training(f"execution_{urgency:g}", seed, recipes.execution(urgency), _execution)
        for urgency in URGENCIES
        for seed in SEEDS
    ]
    found += [
        Training(f"competition_{n}", seed, recipes.competition(n), _competition) for n in TRADERS for seed in (0, 1)
    ]
    league = dataclasses.replace(recipes.competition(2), algorithm="league")
    found += [Training("league_2", seed, league, _competition) for seed in (0, 1)]
    found += [Training("making_noise", seed, recipes.making(), _making) for seed in (0, 1, 2)]
    found += [Training("making_informed", 0, recipes.making(INFORMED), _informed)]
    return found + [
        Training(f"desk_{name}", seed, recipes.desk(name), _desk) for seed in SEEDS for name in DESK_ALGORITHMS
    ]


def run(jobs: Iterable[Training], study: MarketStudy) -> None:
    """Run the trainings that the file lacks and append each when it is finished."""
    done = {(r["name"], r["seed"]) for r in read(study.results)}
    for job in jobs:
        if (job.name, job.seed) in done or (study.only and not job.name.startswith(tuple(study.only))):
            continue
        start, plan = time.perf_counter(), job.recipe
        policy = train_agents(
            plan.training_market(), plan.algorithm, plan.agent, samples=plan.samples, shared=plan.shared, seed=job.seed
        )
        seconds = time.perf_counter() - start
        about = {"algorithm": plan.algorithm, "samples": plan.samples, "seconds": round(seconds, 1)}
        result = {"name": job.name, "seed": job.seed, **about, **job.measure(policy, plan)}
        _append(study.results, result)
        log_progress(f"{job.name}, seed {job.seed}: {result['value']:.4f} in {seconds:.0f} s")


def _run_intraday(study: MarketStudy) -> None:
    """Add a result for each schedule within a session, unless the file has them."""
    name = "intraday"
    if any(r["name"].startswith(name) for r in read(study.results)):
        return
    if study.only and not name.startswith(tuple(study.only)):
        return
    for schedule, result in simulated_study(0).items():
        _append(study.results, {"name": f"{name}_{schedule}", "seed": 0, **result})
        log_progress(f"{name}_{schedule}: {result['value']:.3f} bp")


# ---------------------------------------------------------------------- measures


def _execution(policy: JointPolicy, plan: Recipe) -> Result:
    """Excess of cost + risk over the optimum, and the schedule."""
    market = plan.make_market(envs=1)
    assert isinstance(market, ExecutionMarket)
    config = market.config
    orders, trades = execution_trades(policy, market)
    return {
        "value": excess_cost(orders, trades, market, 0.0),
        "order": orders[0, 0],
        "horizon": config.horizon,
        "permanent": config.permanent,
        "temporary": config.temporary,
        "volatility": config.volatility,
        "risk_aversion": config.risk_aversion,
        "holdings": _holdings(orders[0, 0], trades[0, 0]),
    }


def _competition(policy: JointPolicy, plan: Recipe) -> Result:
    """Distance of the schedules from the closed form over the order's size, and gains by best responses."""
    market = plan.make_market(envs=1)
    assert isinstance(market, ExecutionMarket)
    config = market.config
    orders, trades = execution_trades(policy, market)
    bought = np.concatenate([np.zeros((len(trades[0]), 1)), np.cumsum(trades[0], -1)], -1)  # [M, N + 1]
    times = np.linspace(0, config.horizon, config.steps + 1)
    true = predatory_holdings(orders[0], config.horizon, config.permanent / config.temporary, times)
    distance = np.sqrt(((bought - true) ** 2).mean(-1)) / np.abs(orders[0]).max()
    return {
        "value": float(distance.max()),
        "horizon": config.horizon,
        "permanent": config.permanent,
        "temporary": config.temporary,
        "holdings": [_holdings(x, row) for x, row in zip(orders[0], trades[0], strict=True)],
        "best_response_gain": exploitability(orders[0], trades[0], market).tolist(),
    }


def _holdings(order: float, trades: np.ndarray) -> list[float]:
    """Shares still to trade, [N + 1], from the order to exactly 0."""
    left = order - np.cumsum(trades)
    return [float(order), *left[:-1].tolist(), 0.0]


def _making(policy: JointPolicy, plan: Recipe) -> Result:
    """Share of the optimum's certainty equivalent, quotes at the start, and error against the closed form."""
    market = plan.make_market(envs=1)
    assert isinstance(market, MakingMarket)
    config, problem = market.config, market.problem()
    score = quote_score(policy, market)
    exact = glft_quotes(problem, config.horizon)
    bid, ask = score.bid[0].copy(), score.ask[0].copy()
    bid[-1], ask[0] = exact.bid[-1], exact.ask[0]  # not quoted
    held = score.visited >= VISITED
    errors = np.abs(np.concatenate([(bid - exact.bid)[held], (ask - exact.ask)[held]])) * config.decay
    middle = config.max_inventory
    best = solve_quotes(problem, config.steps).value[0, middle]
    # The same quotes under exponential utility, whose risk aversion gives the same cost of holding inventory.
    aversion = 2 * config.running_penalty / config.volatility**2
    utility = dataclasses.replace(problem, running_penalty=0.0, risk_aversion=aversion)
    certain = solve_quotes(utility, config.steps).value[0, middle]
    return {
        "value": score.share,
        "intensity": config.intensity,
        "decay": config.decay,
        "volatility": config.volatility,
        "horizon": config.horizon,
        "max_inventory": config.max_inventory,
        "running_penalty": config.running_penalty,
        "steps": config.steps,
        "bid": [None if np.isnan(x) else float(x) for x in bid],
        "ask": [None if np.isnan(x) else float(x) for x in ask],
        "visited": score.visited.tolist(),
        "error": float(np.nanmean(errors)),
        "optimum": float(best),
        "best_constant": best_constant_quote(problem, config.steps)[1] / float(best),
        "spread": score.spread,
        "exponential": {
            "risk_aversion": aversion,
            "share": float(evaluate_quotes(utility, score.bid, score.ask)[0, middle] / certain),
            "optimum": float(certain),
            "best_constant": best_constant_quote(utility, config.steps)[1] / float(certain),
        },
    }


def _informed(policy: JointPolicy, plan: Recipe) -> Result:
    """Spread at the start, without inventory, among informed traders."""
    market = plan.make_market(envs=1)
    assert isinstance(market, MakingMarket)
    spread = quote_score(policy, market).spread
    return {"value": spread, "spread": spread, "informed_intensity": market.config.informed_intensity}


def _desk(policy: JointPolicy, plan: Recipe) -> Result:
    """Excess of the desk's cost + risk over its optimum, over the same random orders for all."""
    market = plan.make_market(envs=DESK_EPISODES)
    assert isinstance(market, ExecutionMarket)
    orders, trades = execution_trades(policy, market, DESK_SEED)
    even = np.repeat(orders[..., None] / market.config.steps, market.config.steps, -1)
    return {
        "value": 1 + excess_cost(orders, trades, market, 1.0),
        "equal_slices": 1 + excess_cost(orders, even, market, 1.0),
    }


# ---------------------------------------------------------------------- kept results


def read(kept: Path) -> list[Result]:
    """Read the results of a file; empty if it does not exist. Raises RunError for an invalid line."""
    if not kept.exists():
        return []
    results = []
    for number, line in enumerate(kept.read_text(encoding="utf-8").splitlines(), 1):
        try:
            result = json.loads(line)
            if not {"name", "seed", "value"} <= set(result):
                raise ValueError
        except (ValueError, TypeError):
            raise RunError(f"{kept}, line {number} is not a valid result: remove the line and run again") from None
        results.append(result)
    return results


def rows_of(results: Sequence[Result]) -> list[Row]:
    """Rows of all results: one for each training, one for each algorithm of the desk."""
    rows = []
    informed = next((r for r in results if r["name"] == "making_informed"), None)
    for result in results:
        name, seed = result["name"], result["seed"]
        config = {key: x for key, x in result.items() if key not in ("name", "value")}
        if name.startswith("execution_"):
            rows.append(_single(f"{name}_seed{seed}", result, "excess over the optimum", config))
        elif name.startswith(("competition_", "league_")):
            rows.append(_single(f"{name}_seed{seed}", result, "distance from equilibrium", config))
        elif name.startswith("intraday_"):
            config = {key: x for key, x in config.items() if key not in ("low", "high")}
            interval = {"interval": f"{LEVEL:.0%} bootstrap over sessions"}
            rows.append(Row(name, result["value"], result["low"], result["high"], "bp", {**config, **interval}))
        elif name == "making_noise" and informed is not None:
            spreads = {"spread_noise": result["spread"], "spread_informed": informed["spread"]}
            rows.append(_single(f"{name}_seed{seed}", result, "share of the optimum", {**config, **spreads}))
    return rows + _desk_rows(_by_algorithm(results))


def _single(name: str, result: Result, unit: str, config: Mapping[str, Any]) -> Row:
    return Row(name, result["value"], result["value"], result["value"], unit, config)


def _by_algorithm(results: Sequence[Result]) -> dict[str, dict[int, Result]]:
    """Results of the desk: algorithm -> seed -> result."""
    found: dict[str, dict[int, Result]] = {}
    for result in results:
        if result["name"].startswith("desk_"):
            found.setdefault(result["name"].removeprefix("desk_"), {})[result["seed"]] = result
    return found


def _desk_rows(desks: Mapping[str, Mapping[int, Result]]) -> list[Row]:
    """Mean cost over the optimum of each algorithm, and the interval of its difference from MAPPO by seed."""
    rows = []
    for algorithm, by_seed in desks.items():
        costs = [by_seed[seed]["value"] for seed in sorted(by_seed)]
        some = next(iter(by_seed.values()))
        config: Result = {
            "seeds": costs,
            "samples": some["samples"],
            "equal_slices": some["equal_slices"],
            "seconds": round(sum(r["seconds"] for r in by_seed.values()), 1),
            "interval": "range of the seeds",
        }
        both = sorted(by_seed.keys() & desks.get("mappo", {}).keys())
        if algorithm != "mappo" and len(both) > 1:
            low, high = paired_interval([by_seed[s]["value"] - desks["mappo"][s]["value"] for s in both])
            config["mappo_saves"] = {"low": low, "high": high, "interval": f"{LEVEL:.0%} bootstrap over pairs of seeds"}
        rows.append(
            Row(f"desk_{algorithm}", statistics.mean(costs), min(costs), max(costs), "cost over the optimum", config)
        )
    return rows


def paired_interval(differences: Sequence[float]) -> tuple[float, float]:
    """Percentile interval of the mean of paired differences, by a bootstrap over pairs."""
    values, rng = np.array(differences), np.random.default_rng(0)
    means = values[rng.integers(0, len(values), (DRAWS, len(values)))].mean(1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _append(path: Path, record: Mapping[str, Any]) -> None:
    """Append one line atomically; several processes may write to the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(record, sort_keys=True, allow_nan=False) + "\n").encode()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, line)
        os.fsync(handle)
    finally:
        os.close(handle)
