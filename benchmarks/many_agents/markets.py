"""Markets with many agents: learned schedules and quotes against the exact optimum of the simulated market.

    python -m benchmarks markets                                        # the recorded results; trains what they lack
    python -m benchmarks markets --only execution --results mine.jsonl  # measure again; continues where it stopped

Every training is a line of markets.jsonl and is not repeated; several processes may share a file. Rows are made from
what the file contains.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from finrl_pod_app.multi_agent import recipes
from finrl_pod_app.multi_agent.intraday import LEVEL, SAMPLES, compare, mean_interval, train_execution
from finrl_pod_app.multi_agent.recipes import Recipe
from finrl_pod_app.multi_agent.training import excess_cost, execution_trades, exploitability, quote_score
from finrl_pod_envs.multi_agent.execution import ExecutionMarket
from finrl_pod_envs.multi_agent.making import MakingMarket

from benchmarks.harness.results import FOLDER, Job, Record, append, read, run_missing
from benchmarks.harness.rows import Row, log_progress, single_row
from finrl_pod.errors import ConfigError
from finrl_pod.market.intraday import SCHEDULES, simulated_sessions
from finrl_pod.market.optimal_execution import predatory_holdings
from finrl_pod.market.optimal_quotes import best_constant_quote, evaluate_quotes, glft_quotes, solve_quotes
from finrl_pod.rl.multi_agent.training import JointPolicy, train_agents
from finrl_pod.settings.multi_agent import IntradayExecutionConfig

RESULTS_FILE = FOLDER / "markets.jsonl"
URGENCIES = (1.5, 3.0, 6.0)  # kappa T
TRADERS = (2, 5)
SEEDS = range(5)
DESK_ALGORITHMS = ("mappo", "maddpg", "ippo")
# the same orders for every agent
DESK_EPISODES = 256
DESK_SEED = 999
INFORMED = 60.0  # arrivals of informed traders per unit of time
MIN_VISITED = 0.01  # quotes are compared at inventories that occur at least that share of the time
INTRADAY = "intraday"
# bars of 15 minutes
TRAIN_SESSIONS = 1000
TEST_SESSIONS = 500
SESSION_BARS = 26

Measure = Callable[[JointPolicy, Recipe], Record]


@dataclass(frozen=True)
class MarketStudy:
    """Settings of `markets`. only: prefixes of the names of trainings; empty for all."""

    only: tuple[str, ...] = ()
    results: Path = RESULTS_FILE
    table: bool = False


def market_rows(study: MarketStudy) -> list[Row]:
    """Run what is not stored yet; return the rows of all stored results.

    Raises ConfigError if there is nothing to read.
    """
    if not study.table:
        run_missing(study.results, (job for job in jobs() if _is_selected(job.key["name"], study)))
        _run_intraday(study)
    if rows := rows_of(read(study.results)):
        return rows
    raise ConfigError(f"{study.results} has no results of markets; run without --table, or name another --results file")


def _is_selected(name: str, study: MarketStudy) -> bool:
    return not study.only or name.startswith(study.only)


def jobs() -> Iterator[Job]:
    for urgency in URGENCIES:
        yield from (job(f"execution_{urgency:g}", seed, recipes.execution(urgency), _execution) for seed in SEEDS)
    for traders in TRADERS:
        yield from (job(f"competition_{traders}", seed, recipes.competition(traders), _competition) for seed in (0, 1))
    league = dataclasses.replace(recipes.competition(2), algorithm="league")
    yield from (job("league_2", seed, league, _competition) for seed in (0, 1))
    yield from (job("making_noise", seed, recipes.making(), _making) for seed in (0, 1, 2))
    yield job("making_informed", 0, recipes.making(INFORMED), _measure_informed)
    for seed in SEEDS:
        yield from (job(f"desk_{name}", seed, recipes.desk(name), _desk) for name in DESK_ALGORITHMS)


def job(name: str, seed: int, recipe: Recipe, measure: Measure) -> Job:
    return Job({"name": name, "seed": seed}, partial(_train, seed, recipe, measure))


def _train(seed: int, recipe: Recipe, measure: Measure) -> Record:
    policy = train_agents(
        recipe.training_market(),
        recipe.algorithm,
        recipe.agent,
        samples=recipe.samples,
        shared=recipe.shared,
        seed=seed,
    )
    return {"algorithm": recipe.algorithm, "samples": recipe.samples, **measure(policy, recipe)}


def _run_intraday(study: MarketStudy) -> None:
    """Add a result for each schedule within a session, unless the file has them."""
    if any(r["name"].startswith(INTRADAY) for r in read(study.results)) or not _is_selected(INTRADAY, study):
        return
    for schedule, result in intraday_study(0).items():
        append(study.results, {"name": f"{INTRADAY}_{schedule}", "seed": 0, **result})
        log_progress(f"{INTRADAY}_{schedule}: {result['value']:.3f} bp")


def intraday_study(seed: int, samples: int = SAMPLES) -> dict[str, Record]:
    """Train on simulated sessions and compare on later ones: a result for each schedule."""
    config = IntradayExecutionConfig()
    sessions = simulated_sessions(TRAIN_SESSIONS + TEST_SESSIONS, SESSION_BARS, seed)
    agent = train_execution(sessions.part(0, TRAIN_SESSIONS), config, samples=samples, seed=seed)
    test_sessions = sessions.part(TRAIN_SESSIONS, TRAIN_SESSIONS + TEST_SESSIONS)
    summaries = compare(test_sessions, {**SCHEDULES, "ppo": agent}, config)
    return {
        name: {
            "value": s.mean, "low": s.low, "high": s.high, "difference": s.difference,
            "difference_low": s.difference_low, "difference_high": s.difference_high,
            "order_share": config.order_share, "test_sessions": TEST_SESSIONS,
            "samples": samples if name == "ppo" else 0,
        }
        for name, s in summaries.items()
    }  # fmt: skip


def _execution(policy: JointPolicy, recipe: Recipe) -> Record:
    """Excess of cost + risk over the optimum, and the schedule."""
    market = recipe.make_market(envs=1)
    assert isinstance(market, ExecutionMarket)
    config = market.config
    orders, trades = execution_trades(policy, market)
    return {
        "value": excess_cost(orders, trades, market, 0.0),
        "order": orders[0, 0],
        **_settings(config, "horizon", "permanent", "temporary", "volatility", "risk_aversion"),
        "holdings": _holdings(orders[0, 0], trades[0, 0]),
    }


def _competition(policy: JointPolicy, recipe: Recipe) -> Record:
    """Distance of the schedules from the closed form over the order size, and gains by best responses."""
    market = recipe.make_market(envs=1)
    assert isinstance(market, ExecutionMarket)
    config = market.config
    orders, trades = execution_trades(policy, market)
    purchases = np.concatenate([np.zeros((len(trades[0]), 1)), np.cumsum(trades[0], -1)], -1)  # [M, N + 1]
    times = np.linspace(0, config.horizon, config.steps + 1)
    true = predatory_holdings(orders[0], config.horizon, config.permanent / config.temporary, times)
    distance = np.sqrt(((purchases - true) ** 2).mean(-1)) / np.abs(orders[0]).max()
    return {
        "value": float(distance.max()),
        **_settings(config, "horizon", "permanent", "temporary"),
        "holdings": [_holdings(x, row) for x, row in zip(orders[0], trades[0], strict=True)],
        "best_response_gain": exploitability(orders[0], trades[0], market).tolist(),
    }


def _settings(config: object, *names: str) -> Record:
    return {name: getattr(config, name) for name in names}


def _holdings(order: float, trades: np.ndarray) -> list[float]:
    """Shares still to trade, [N + 1], from the order to exactly 0."""
    left = order - np.cumsum(trades)
    return [float(order), *left[:-1].tolist(), 0.0]


def _making(policy: JointPolicy, recipe: Recipe) -> Record:
    """Share of the optimal certainty equivalent, quotes at the start, and error against the closed form."""
    market = recipe.make_market(envs=1)
    assert isinstance(market, MakingMarket)
    config = market.config
    problem = market.problem()
    score = quote_score(policy, market)
    exact = glft_quotes(problem, config.horizon)
    bid = score.bid[0].copy()
    ask = score.ask[0].copy()
    # not quoted
    bid[-1] = exact.bid[-1]
    ask[0] = exact.ask[0]
    is_visited = score.visited >= MIN_VISITED
    errors = np.abs(np.concatenate([(bid - exact.bid)[is_visited], (ask - exact.ask)[is_visited]])) * config.decay
    middle = config.max_inventory
    best = solve_quotes(problem, config.steps).value[0, middle]
    # The same quotes under exponential utility with a risk aversion that gives the same cost of holding inventory.
    aversion = 2 * config.running_penalty / config.volatility**2
    utility = dataclasses.replace(problem, running_penalty=0.0, risk_aversion=aversion)
    certain = solve_quotes(utility, config.steps).value[0, middle]
    return {
        "value": score.share,
        **_settings(config, "intensity", "decay", "volatility", "horizon", "max_inventory", "running_penalty", "steps"),
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


def _measure_informed(policy: JointPolicy, recipe: Recipe) -> Record:
    """Spread at the start, without inventory, among informed traders."""
    market = recipe.make_market(envs=1)
    assert isinstance(market, MakingMarket)
    spread = quote_score(policy, market).spread
    return {"value": spread, "spread": spread, "informed_intensity": market.config.informed_intensity}


def _desk(policy: JointPolicy, recipe: Recipe) -> Record:
    """Excess of cost + risk of the desk over its optimum, over the same random orders for all."""
    market = recipe.make_market(envs=DESK_EPISODES)
    assert isinstance(market, ExecutionMarket)
    orders, trades = execution_trades(policy, market, DESK_SEED)
    even = np.repeat(orders[..., None] / market.config.steps, market.config.steps, -1)
    return {
        "value": 1 + excess_cost(orders, trades, market, 1.0),
        "equal_slices": 1 + excess_cost(orders, even, market, 1.0),
    }


UNITS = {
    "execution_": "excess over the optimum",
    "competition_": "distance from equilibrium",
    "league_": "distance from equilibrium",
    "making_noise": "share of the optimum",
}


def rows_of(records: Sequence[Record]) -> list[Row]:
    """Rows of all results: one for each training, one for each algorithm of the desk."""
    rows = []
    desks: dict[str, dict[int, Record]] = {}
    informed_record = next((r for r in records if r["name"] == "making_informed"), None)
    for record in records:
        name = record["name"]
        config = {key: x for key, x in record.items() if key not in ("name", "value", "low", "high")}
        unit = next((unit for prefix, unit in UNITS.items() if name.startswith(prefix)), None)
        if name.startswith("desk_"):
            desks.setdefault(name.removeprefix("desk_"), {})[record["seed"]] = record
        elif name.startswith(INTRADAY):
            config["interval"] = f"{LEVEL:.0%} bootstrap over sessions"
            rows.append(Row(name, record["value"], record["low"], record["high"], "bp", config))
        elif unit is not None and (name != "making_noise" or informed_record is not None):
            if name == "making_noise" and informed_record is not None:
                config |= {"spread_noise": record["spread"], "spread_informed": informed_record["spread"]}
            rows.append(single_row(f"{name}_seed{record['seed']}", record["value"], unit, **config))
    return rows + _desk_rows(desks)


def _desk_rows(desks: Mapping[str, Mapping[int, Record]]) -> list[Row]:
    """Mean cost over the optimum of each algorithm, and the interval of its difference from MAPPO by seed."""
    rows = []
    for algorithm, by_seed in desks.items():
        costs = [by_seed[seed]["value"] for seed in sorted(by_seed)]
        first = next(iter(by_seed.values()))
        config: Record = {
            "seeds": costs,
            "samples": first["samples"],
            "equal_slices": first["equal_slices"],
            "seconds": round(sum(r["seconds"] for r in by_seed.values()), 1),
            "interval": "range of the seeds",
        }
        common_seeds = sorted(by_seed.keys() & desks.get("mappo", {}).keys())
        if algorithm != "mappo" and len(common_seeds) > 1:
            low, high = mean_interval(
                np.array([by_seed[s]["value"] - desks["mappo"][s]["value"] for s in common_seeds])
            )
            config["mappo_saves"] = {"low": low, "high": high, "interval": f"{LEVEL:.0%} bootstrap over pairs of seeds"}
        rows.append(
            Row(f"desk_{algorithm}", statistics.mean(costs), min(costs), max(costs), "cost over the optimum", config)
        )
    return rows
