"""How often the gate errs: champions promoted in worlds without an edge, and in worlds with one of a known size.

Every world goes through the whole line, from prices to the verdict, with one config and one set of thresholds: the
defaults of `GateConfig`. A learner that learns nothing is the control: it is promoted nowhere, which alone says little,
so both rates stand side by side. A champion that fails a rule on how it was chosen, on validation, is refused whatever
the other rules say: they are not computed then, and its test period is not looked at. The first line of a JSONL file is
the config, each world another one, and a study that is stopped goes on with the worlds that the file does not have yet.
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
from finrl_pod_app.bench.training import say

LEVEL = 0.95
BARS = 10_436  # weekdays of forty years
KEPT = Path("benchmarks/gate.jsonl")
FIRST = 4000  # thresholds and training were settled on worlds below this seed
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
# One step of each environment at the least rate that a member may have: weights stay as they were drawn.
UNTRAINED = dataclasses.replace(CONFIG.tournament, samples_per_generation=1)
STILL = dataclasses.replace(AGENT, learning_rate=1e-5, epochs=1)


def config_of(learner: str, seed: int) -> RunConfig:
    """The study's config for one world. Raises ConfigError for an unknown learner."""
    if learner not in LEARNERS:
        raise ConfigError(f"--learner must be one of {', '.join(LEARNERS)}, got {learner!r}")
    config = dataclasses.replace(CONFIG, seed=seed)
    return config if learner == "ppo" else dataclasses.replace(config, tournament=UNTRAINED, agent=STILL)


def run_world(edge: float, learner: str, seed: int, device: torch.device) -> dict[str, Any]:
    """One world from prices to verdict, in a folder and a register of its own: a plain record of what came out."""
    # The line needs more than the core does: it is imported where it runs.
    from finrl_pod.promotion.trial_registry import TrialRegistry
    from finrl_pod.tournament.run_directory import RunDirectory
    from finrl_pod_app.services.promotion import EvaluationContext, check_champion_selection, evaluate_champion
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
        first = check_champion_selection(context, run, members, registry, log)
        promoted, rules, sharpes = False, [dataclasses.asdict(rule) for rule in first], {}
        if all(rule.passed for rule in first):
            evaluation = evaluate_champion(context, run, members, registry, log, lambda _: None)
            promoted, rules = evaluation.judged.promoted, [dict(rule) for rule in evaluation.judged.rules]
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
    """Last bar of the history that worlds are drawn from: the default config's last training bar."""
    return make_splits(sample.times, RunConfig().splits).train.last


def gate_rows(
    edges: Sequence[float], learners: Sequence[str], worlds: int, first: int, kept: Path, device: torch.device
) -> list[Row]:
    """Run what `kept` lacks of `worlds` worlds from seed `first` on, and give the promoted share of each edge and
    learner over all worlds that the file holds, with its exact interval."""
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
                record = run_world(edge, learner, seed, device)
                append(kept, record)
                failed = [name for name, rule in record["rules"].items() if not rule["passed"]]
                outcome = "promoted" if record["promoted"] else f"refused by {', '.join(failed)}"
                say(f"edge {edge:g}, {learner}, seed {seed}: {outcome} in {record['seconds']:.0f} s")
    return [_row(edge, learner, records) for (edge, learner), records in _grouped(read(kept), edges, learners).items()]


def read(kept: Path) -> list[dict[str, Any]]:
    """The worlds of a file, none where there is none. Raises RunError for a line that is no record, and for worlds of
    another config: thresholds are frozen, rates of two configs are not one rate."""
    if not kept.exists():
        return []
    records, known = [], False
    for number, line in enumerate(kept.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
            begun_with = record.get("config")
            if begun_with is None and (not known or record["learner"] not in LEARNERS):
                raise KeyError  # a world before its config, or of a learner that is none
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError(f"{kept}, line {number} is no record of a world: remove the line and run it again") from None
        if begun_with is None:
            records.append(record)
            continue
        known = True
        other = changed(begun_with, settings())
        if other:
            raise RunError(
                f"{kept} was made with another config or other thresholds ({other}): begin a new file with --keep"
            )
    return records


def settings() -> Any:
    """The study's config as JSON has it."""
    return json.loads(json.dumps(dataclasses.asdict(CONFIG)))


def changed(then: Any, now: Any, where: str = "") -> str:
    """The first setting that is no longer what it was, empty where all are. What has become a setting since then does
    not count: by its default a run is as it was before."""
    if not isinstance(then, dict) or not isinstance(now, dict):
        return "" if then == now else where or "all of it"
    for name, value in then.items():
        told = changed(value, now.get(name), f"{where}.{name}" if where else name)
        if told:
            return told
    return ""


def append(kept: Path, record: Mapping[str, Any]) -> None:
    """Add a line, whole: several processes may write to one file."""
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
    low, high = binomial_interval(promoted, len(records), LEVEL)
    names = dict.fromkeys(name for record in records for name in record["rules"])
    outcomes = {name: [r["rules"][name]["passed"] for r in records if name in r["rules"]] for name in names}
    config = {
        "edge": edge,
        "learner": learner,
        "worlds": len(records),
        "promoted": promoted,
        "interval": f"{LEVEL:.0%} Clopper-Pearson",
        "rules": {name: {"met": sum(met), "of": len(met)} for name, met in outcomes.items()},
        "seconds": round(sum(record["seconds"] for record in records), 1),
        "gate": dataclasses.asdict(CONFIG.gate),
    }
    return Row(f"gate_{learner}_{edge:g}", promoted / len(records), low, high, "share promoted", config)
