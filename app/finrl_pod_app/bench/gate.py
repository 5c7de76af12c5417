"""Error rates of the promotion gate: champions promoted in simulated markets without an edge, and with a known edge.

Every market runs through the whole pipeline, from prices to the verdict, with one config and the default thresholds of
`GateConfig`. An untrained agent is the control: it should never be promoted. A champion that fails a selection rule on
validation is refused without computing the other rules, and its test period is not used. Results are JSON lines: the
first is the config, each further line one market. An interrupted study continues with the markets that are missing.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from finrl_pod.data.sources.sample import load_sample
from finrl_pod.data.splits import make_splits
from finrl_pod.errors import ConfigError, RunError
from finrl_pod.evaluate.intervals import binomial_interval
from finrl_pod.settings.algorithm_configs import PPOConfig
from finrl_pod.settings.run import EnvironmentConfig, FeatureConfig, RunConfig, SplitConfig, TournamentConfig
from finrl_pod.types import Panel
from finrl_pod_app.bench.edges import STRENGTHS, edge_panel
from finrl_pod_app.bench.rows import Row
from finrl_pod_app.bench.training import log_progress

CONFIDENCE_LEVEL = 0.95
BARS = 10_436  # weekdays of forty years
RESULTS_FILE = Path("benchmarks/gate.jsonl")
FIRST_SEED = 4000  # thresholds and training were tuned on markets with smaller seeds
LEARNERS = ("ppo", "untrained")
AGENT = PPOConfig(learning_rate=1e-2, hidden=(16, 16))
CONFIG = RunConfig(
    splits=SplitConfig(
        train=("1980-01-01", "1995-12-31"), validation=("1996-01-01", "2007-12-31"), test=("2008-01-01", "2019-12-31")
    ),
    features=FeatureConfig(("return_1_rank", "return_21_rank", "return_63_rank", "momentum_252_21_rank")),
    environment=EnvironmentConfig(envs=512),
    agent=AGENT,
    tournament=TournamentConfig(pods=8, generations=2, samples_per_generation=131_072, leaderboard=16, champion=8),
)
# One step per environment at the smallest allowed learning rate: weights stay at their initial values.
UNTRAINED_TOURNAMENT = dataclasses.replace(CONFIG.tournament, samples_per_generation=1)
FROZEN_AGENT = dataclasses.replace(AGENT, learning_rate=1e-5, epochs=1)


def config_of(learner: str, seed: int) -> RunConfig:
    """Return the study's config for one market. Raises ConfigError for an unknown learner."""
    if learner not in LEARNERS:
        raise ConfigError(f"--learner must be one of {', '.join(LEARNERS)}, got {learner!r}")
    config = dataclasses.replace(CONFIG, seed=seed)
    return (
        config if learner == "ppo" else dataclasses.replace(config, tournament=UNTRAINED_TOURNAMENT, agent=FROZEN_AGENT)
    )


def run_market(edge: float, learner: str, seed: int, device: torch.device) -> dict[str, Any]:
    """Run one market from prices to verdict in a temporary folder with its own registry; return plain values."""
    # The pipeline needs more packages than the core: import it here.
    from finrl_pod.promotion.trial_registry import TrialRegistry
    from finrl_pod.tournament.run_directory import RunDirectory
    from finrl_pod_app.services.promotion import EvaluationContext, evaluate_champion, evaluate_selection
    from finrl_pod_app.services.training import make_market, train, training_env

    began = time.perf_counter()
    config = config_of(learner, seed)
    sample = load_sample()
    panel = edge_panel(sample, history_end(sample), STRENGTHS[edge], seed, BARS)
    splits = make_splits(panel.times, config.splits)
    market = make_market(panel, config, splits)
    context = EvaluationContext(config, panel, splits, market, training_env(config, market, splits, (0,)).last)
    with TemporaryDirectory(prefix="finrl-pod-gate-") as folder:
        run = RunDirectory.create(Path(folder) / "run", config, panel.sha256)
        registry = TrialRegistry(Path(folder) / "register.sqlite")
        _, members, log = train(context, run, registry, device)
        first = evaluate_selection(context, run, members, registry, log)
        promoted, rules, sharpes = False, [dataclasses.asdict(rule) for rule in first], {}
        if all(rule.passed for rule in first):
            evaluation = evaluate_champion(context, run, members, registry, log, lambda _: None)
            promoted, rules = (
                evaluation.verdict.promoted,
                [dataclasses.asdict(rule) for rule in evaluation.verdict.rules],
            )
            sharpes = {
                split: {name: round(results[name].metrics["sharpe"], 4) for name in ("champion", "equal_weight")}
                for split, results in (("validation", evaluation.validation), ("test", evaluation.test))
            }
        trials = dataclasses.asdict(registry.counts(panel.sha256))
    return {
        "edge": edge,
        "learner": learner,
        "seed": seed,
        "promoted": promoted,
        "rules": {rule["name"]: {key: rule[key] for key in ("value", "limit", "passed")} for rule in rules},
        "sharpe": sharpes,
        "trials": trials,
        "world_sha256": panel.sha256,
        "seconds": round(time.perf_counter() - began, 1),
    }


def history_end(sample: Panel) -> int:
    """Return the last bar that markets are resampled from: the last training bar of the default config."""
    return make_splits(sample.times, RunConfig().splits).train.last


def gate_rows(
    edges: Sequence[float], learners: Sequence[str], worlds: int, first: int, kept: Path, device: torch.device
) -> list[Row]:
    """Run the markets with seeds first to first + worlds - 1 that the file `kept` lacks.

    Returns a row per edge and learner: the promoted share over all markets in the file, with its exact interval.
    """
    if worlds < 0 or first < 0:
        raise ConfigError(f"--worlds and --first must be 0 or more, got {worlds} and {first}")
    for edge in edges:
        if edge not in STRENGTHS:
            raise ConfigError(f"--edge must be one of {', '.join(map(str, STRENGTHS))}, got {edge:g}")
    for learner in learners:
        config_of(learner, 0)
    done = {(r["edge"], r["learner"], r["seed"]) for r in read(kept)}
    if worlds and not kept.exists():
        append(kept, {"config": settings()})
    for seed in range(first, first + worlds):
        for edge in edges:
            for learner in learners:
                if (edge, learner, seed) in done:
                    continue
                record = run_market(edge, learner, seed, device)
                append(kept, record)
                failed = [name for name, rule in record["rules"].items() if not rule["passed"]]
                outcome = "promoted" if record["promoted"] else f"refused by {', '.join(failed)}"
                log_progress(f"edge {edge:g}, {learner}, seed {seed}: {outcome} in {record['seconds']:.0f} s")
    return [_row(edge, learner, records) for (edge, learner), records in _grouped(read(kept), edges, learners).items()]


def read(kept: Path) -> list[dict[str, Any]]:
    """Read the records of a file; empty if it does not exist.

    Raises RunError for an invalid line, and for another config: rates of two configs must not be mixed.
    """
    if not kept.exists():
        return []
    records, has_header = [], False
    for number, line in enumerate(kept.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
            header = record.get("config")
            if header is None and (not has_header or record["learner"] not in LEARNERS):
                raise KeyError  # a market before its config, or an unknown learner
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError(f"{kept}, line {number} is not a valid record: remove the line and run again") from None
        if header is None:
            records.append(record)
            continue
        has_header = True
        other = changed(header, settings())
        if other:
            raise RunError(
                f"{kept} was made with another config or other thresholds ({other}): start a new file with --keep"
            )
    return records


def settings() -> Any:
    """Return the study's config as plain JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(CONFIG)))


def changed(then: Any, now: Any, where: str = "") -> str:
    """Return the name of the first setting that differs, or "" if none does.

    Settings that were added since are ignored: their defaults keep the earlier behaviour.
    """
    if not isinstance(then, dict) or not isinstance(now, dict):
        return "" if then == now else where or "the config"
    for name, value in then.items():
        difference = changed(value, now.get(name), f"{where}.{name}" if where else name)
        if difference:
            return difference
    return ""


def append(kept: Path, record: Mapping[str, Any]) -> None:
    """Append one line atomically; several processes may write to the same file."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(record, sort_keys=True, allow_nan=False) + "\n").encode()
    handle = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, line)
        os.fsync(handle)
    finally:
        os.close(handle)


def _grouped(
    records: Sequence[Mapping[str, Any]], edges: Sequence[float], learners: Sequence[str]
) -> dict[tuple[float, str], list[Mapping[str, Any]]]:
    groups: dict[tuple[float, str], list[Mapping[str, Any]]] = {}
    for record in records:
        if record["edge"] in edges and record["learner"] in learners:
            groups.setdefault((record["edge"], record["learner"]), []).append(record)
    return dict(sorted(groups.items()))


def _row(edge: float, learner: str, records: Sequence[Mapping[str, Any]]) -> Row:
    promoted = sum(record["promoted"] for record in records)
    low, high = binomial_interval(promoted, len(records), CONFIDENCE_LEVEL)
    names = dict.fromkeys(name for record in records for name in record["rules"])
    outcomes = {name: [r["rules"][name]["passed"] for r in records if name in r["rules"]] for name in names}
    config = {
        "edge": edge,
        "learner": learner,
        "worlds": len(records),
        "promoted": promoted,
        "interval": f"{CONFIDENCE_LEVEL:.0%} Clopper-Pearson",
        "rules": {name: {"met": sum(met), "of": len(met)} for name, met in outcomes.items()},
        "seconds": round(sum(record["seconds"] for record in records), 1),
        "gate": dataclasses.asdict(CONFIG.gate),
    }
    return Row(f"gate_{learner}_{edge:g}", promoted / len(records), low, high, "share promoted", config)
