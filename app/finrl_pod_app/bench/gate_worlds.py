"""Trained worlds of the gate's study: champions in simulated markets without an edge, and with a known edge.

Every market runs through the whole pipeline, from prices to the verdict, with the default gate. Agents are of two
kinds: "default" is the one of `finrl-pod demo`, "unbounded" a PPO agent without a mandate. A champion that fails the
test for an edge is refused without evaluating the other rules. Where there is an edge, the market continues for a
hundred years after the test period, on which the champion's true information ratio is measured.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from finrl_pod.data.panel import make_panel
from finrl_pod.data.sources.sample import load_sample
from finrl_pod.data.splits import make_splits
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import ConfigError
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.metrics import simple_returns
from finrl_pod.market.rules import rules_of
from finrl_pod.settings.algorithm_configs import PPOConfig
from finrl_pod.settings.run import (
    EnvironmentConfig,
    FeatureConfig,
    MandateConfig,
    RunConfig,
    SplitConfig,
    TournamentConfig,
)
from finrl_pod.types import Panel
from finrl_pod_app.bench.edges import BARS_PER_YEAR, STRENGTHS, edge_panel
from finrl_pod_app.services.presets import preset

BARS = 10_436  # weekdays of forty years
CONTINUATION = 100 * BARS_PER_YEAR
CONTINUED = (0.5, 1.0)  # edges at which the power is held to the best that the ratio reached allows; 2 has 38 of 40
FIRST_SEED = 1_000_000  # nothing was tuned on markets with these seeds
SPLITS = SplitConfig(
    train=("1980-01-01", "1995-12-31"), validation=("1996-01-01", "2007-12-31"), test=("2008-01-01", "2019-12-31")
)
CONFIGS: Mapping[str, RunConfig] = {
    "default": dataclasses.replace(preset("laptop"), splits=SPLITS),
    "unbounded": RunConfig(
        splits=SPLITS,
        features=FeatureConfig(("return_1_rank", "return_21_rank", "return_63_rank", "momentum_252_21_rank")),
        environment=EnvironmentConfig(envs=512),
        mandate=MandateConfig(base="none"),
        agent=PPOConfig(learning_rate=1e-2, hidden=(16, 16)),
        tournament=TournamentConfig(pods=8, generations=2, samples_per_generation=131_072),
    ),
}


class WorldKey(NamedTuple):
    """A trained world: kind of agent, planted information ratio, and number, from 0."""

    kind: str
    edge: float
    world: int

    @property
    def seed(self) -> int:
        """Seed of the market and of the run."""
        return FIRST_SEED + self.world


def config_of(kind: str, seed: int) -> RunConfig:
    """Return the study's config for one market. Raises ConfigError for an unknown kind of agent."""
    if kind not in CONFIGS:
        raise ConfigError(f"--kind must be one of {', '.join(CONFIGS)}, got {kind!r}")
    return dataclasses.replace(CONFIGS[kind], seed=seed)


def settings() -> Any:
    """Return the study's configs as plain JSON values."""
    plain = {kind: dataclasses.asdict(config_of(kind, 0)) for kind in CONFIGS}
    return json.loads(json.dumps(plain))


def run_world(key: WorldKey, device: torch.device) -> dict[str, Any]:
    """Run one market from prices to verdict in a temporary folder with its own registry; return plain values."""
    # The pipeline needs more packages than the core: import it here.
    from finrl_pod.promotion.trial_registry import TrialRegistry
    from finrl_pod.tournament.run_directory import RunDirectory
    from finrl_pod_app.services.promotion import EvaluationContext, evaluate_champion, evaluate_edge
    from finrl_pod_app.services.training import train
    from finrl_pod_app.services.training_setup import make_market, training_env
    from finrl_pod_app.services.trial_log import open_trial_log

    began = time.perf_counter()
    config = config_of(key.kind, key.seed)
    whole = world_panel(key.edge, key.seed)
    panel = first_bars(whole, BARS)
    splits = make_splits(panel.times, config.splits)
    market = make_market(panel, config, splits)
    context = EvaluationContext(config, panel, splits, market, training_env(config, market, splits, (0,)).last)
    with TemporaryDirectory(prefix="finrl-pod-gate-") as folder:
        run = RunDirectory.create(Path(folder) / "run", config, panel.sha256)
        registry = TrialRegistry(Path(folder) / "register.sqlite")
        log = open_trial_log(registry, run, config, panel, market, splits)
        _, members = train(context, run, log, device)
        edge, test = evaluate_edge(context, run, members, registry, log)
        promoted, rules = False, [edge]
        if edge.passed:
            verdict = evaluate_champion(context, run, members, registry, log, lambda _: None).verdict
            promoted, rules = verdict.promoted, list(verdict.rules)
        reached = true_information_ratio(context, whole, run, members) if key.edge in CONTINUED else None
        trials = dataclasses.asdict(registry.counts(panel.sha256))
    return {
        **key._asdict(),
        "seed": key.seed,
        "promoted": promoted,
        "rules": {rule.name: {"value": rule.value, "limit": rule.limit, "passed": rule.passed} for rule in rules},
        "edge_test": test,
        "information_ratio_reached": reached,
        "trials": trials,
        "world_sha256": panel.sha256,
        "seconds": round(time.perf_counter() - began, 1),
    }


def world_panel(edge: float, seed: int) -> Panel:
    """Simulate a market; one with an edge continues for a hundred years."""
    sample = load_sample()
    bars = BARS + (CONTINUATION if edge > 0 else 0)
    return edge_panel(sample, history_end(sample), STRENGTHS[edge], seed, bars)


def first_bars(panel: Panel, bars: int) -> Panel:
    """Return a panel of closes cut after a number of bars."""
    return make_panel(
        panel.times[:bars], panel.symbols, {"close": panel.close[:bars]}, name=panel.name, source=panel.source
    )


def history_end(sample: Panel) -> int:
    """Return the last bar that markets are resampled from: the last training bar of the default config."""
    return make_splits(sample.times, RunConfig().splits).train.last


def true_information_ratio(context: Any, whole: Panel, run: Any, members: Any) -> float:
    """Annual information ratio of a champion over its reference on the bars that follow the context's panel."""
    from finrl_pod_app.services.champions import load_champion
    from finrl_pod_app.services.trial_log import reference_strategy

    champion = load_champion(run, members)
    market = build_market(whole, champion.feature_names, (0, len(context.panel.times) - 1))
    terms = (len(context.panel.times) - 1, market.steps, rules_of(context.config.environment), 1e6)
    ours, base = (
        simple_returns(backtest(strategy, whole, market, *terms).equity)
        for strategy in (champion, reference_strategy(context.config))
    )
    active = ours - base
    return float(active.mean() / active.std() * np.sqrt(BARS_PER_YEAR))
