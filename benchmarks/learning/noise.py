"""False positives: whole tournaments on simulated markets without an edge.

A market is resampled from the training years of the sample so that neither assets nor days differ systematically. A
population is trained, the champion is picked on validation, and its excess over equal weight is tested on the test
years. About one champion in twenty should be significant at the 5% level.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from finrl_pod_envs.trading_envs import make_env
from finrl_pod_strategies.baselines import EqualWeight
from finrl_pod_strategies.policy import PolicyStrategy

from benchmarks.harness.rows import Row, log_progress
from benchmarks.harness.simulated_markets import BASIS_POINT, REWARD_LAG, prices, without_edge
from finrl_pod.data.built_in_panels import load_sample
from finrl_pod.data.panel import make_panel
from finrl_pod.data.splits import make_splits
from finrl_pod.data.tensor import build_market, to_device
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.intervals import binomial_interval
from finrl_pod.evaluate.significance import mean_z_score, upper_tail
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.market.rules import rules_of
from finrl_pod.settings.run import RunConfig, TournamentConfig
from finrl_pod.tournament.cohort import CohortTrainer
from finrl_pod.tournament.executor import LocalExecutor
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.scoring import MarketScorer
from finrl_pod.tournament.selection import champion_of
from finrl_pod.tournament.tournament import Tournament
from finrl_pod.types import Floats, MarketTensor, Panel

SIGNIFICANCE = 0.05
CONFIDENCE_LEVEL = 0.95
TOURNAMENT = TournamentConfig(pods=4, generations=2, samples_per_generation=49_152, leaderboard=8, champion=2)


def noise_panel(sample: Panel, train_last: int, seed: int) -> Panel:
    """Return a panel without an edge, resampled from the returns of the sample up to bar `train_last`."""
    close = sample.close[: train_last + 1]
    history = close[1:] / close[:-1] - 1
    new_returns = without_edge(history, len(sample.times), seed)
    closes = {"close": prices(new_returns)}
    return make_panel(sample.times, sample.symbols, closes, name="noise", source=f"world without edge, seed {seed}")


def champion_excess(panel: Panel, config: RunConfig, device: torch.device) -> Floats:
    """Run a tournament; return daily log returns of its champion in excess of equal weight on the test split."""
    splits = make_splits(panel.times, config.splits)
    market = build_market(panel, config.features.names, (splits.train.first, splits.train.last))
    with TemporaryDirectory(prefix="finrl-pod-bench-") as folder:
        run = RunDirectory.create(Path(folder) / "run", config, panel.sha256)
        environment = partial(_environment, to_device(market, device), config, splits.train.last - REWARD_LAG)
        validation = (splits.validation.first, splits.validation.last)
        scorer = MarketScorer(market, config, validation)
        executor = LocalExecutor(CohortTrainer(config, environment, scorer, panel.sha256))
        Tournament(config, run, executor).run()
        selection = champion_of(run, config)
        champion = PolicyStrategy(
            [run.snapshot(agent) for agent in selection.ids], selection.ensemble_weights, rule=selection.rule
        )
    costs = config.environment
    period = MarketPeriod(market, splits.test.first, splits.test.last, rules_of(costs), costs.cash)
    champion_result, base_result = (backtest(strategy, panel, period) for strategy in (champion, EqualWeight()))
    excess: Floats = np.diff(np.log(champion_result.equity)) - np.diff(np.log(base_result.equity))
    return excess


def noise_row(name: str, settings: TournamentConfig, seeds: int, device: torch.device) -> Row:
    """Measure the share of markets whose champion beats equal weight at the 5% level, with its exact interval."""
    sample = load_sample()
    config = RunConfig(tournament=settings)
    train_last = make_splits(sample.times, config.splits).train.last
    runs: list[dict[str, Any]] = []
    for seed in range(seeds):
        start = time.perf_counter()
        excess = champion_excess(noise_panel(sample, train_last, seed), replace(config, seed=seed), device)
        p_value = upper_tail(mean_z_score(excess))
        seconds = round(time.perf_counter() - start, 1)
        runs.append({"p_value": p_value, "excess_bp_a_day": float(excess.mean()) / BASIS_POINT, "seconds": seconds})
        log_progress(f"{name} seed {seed}: p = {p_value:.3f} in {seconds:.0f} s")
    positives = sum(run["p_value"] <= SIGNIFICANCE for run in runs)
    low, high = binomial_interval(positives, seeds, CONFIDENCE_LEVEL)
    row_config = {
        "samples": config.tournament.pods * config.tournament.generations * config.tournament.samples_per_generation,
        "seconds": round(sum(run["seconds"] for run in runs), 1),
        "positives": positives,
        "worlds": seeds,
        "significance": SIGNIFICANCE,
        "interval": f"{CONFIDENCE_LEVEL:.0%} Clopper-Pearson",
        "runs": runs,
        "tournament": asdict(config.tournament),
        "agent": asdict(config.agent),
        "environment": asdict(config.environment),
        "mandate": asdict(config.mandate),
    }
    return Row(name, positives / seeds, low, high, "share of markets", row_config)


def _environment(market: MarketTensor, config: RunConfig, last: int, members: Sequence[int]) -> Any:
    return make_env(market, config.environment, members=members, last=last, mandate=config.mandate)
