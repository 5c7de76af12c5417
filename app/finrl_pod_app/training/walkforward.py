"""Walk-forward: retrain on every fold with several seeds and test on the bars that follow.

OUT/plan.json            config, data, folds and seeds; a resumed walk-forward must have the same
OUT/fold-01/seed-0/      an ordinary run on the splits of the fold; live.json while it trains
OUT/walkforward.json     results of every fold and seed, statistics, verdict
OUT/verdict.json         the verdict only, as `finrl-pod promote` reads it
OUT/curves.csv           equity of the combined curve, of each seed's, and of the baselines
OUT/report.html report.json
"""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import torch

from finrl_pod.data.dates import stamp
from finrl_pod.data.splits import make_splits
from finrl_pod.errors import InputError, Interrupted, RunError
from finrl_pod.evaluate.folds import Fold, walk_forward_folds
from finrl_pod.files import read_json, write_json
from finrl_pod.promotion.trial_registry import TrialRegistry
from finrl_pod.settings.run import MAX_SEED, RunConfig, SplitConfig
from finrl_pod.tournament.progress import Progress, ProgressCallback
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.selection import champion_of
from finrl_pod.types import Panel
from finrl_pod.user_files import pinned
from finrl_pod_app.evaluation.promotion import EvaluationContext, check_lengths
from finrl_pod_app.evaluation.trial_log import open_trial_log
from finrl_pod_app.evaluation.walkforward_report import FoldRun, report_walkforward
from finrl_pod_app.prices.market_setup import check_settings, make_market, training_env, with_effective_settings
from finrl_pod_app.prices.panels import load_panel
from finrl_pod_app.setup.doctor import pick_device
from finrl_pod_app.setup.output_folder import WALK_FORWARD, locked_folder
from finrl_pod_app.setup.progress_file import live_progress
from finrl_pod_app.training.start_policy import prepare_start
from finrl_pod_app.training.tournaments import both_callbacks, run_engine

FOLDS, SEEDS = 6, 3


def run_walkforward(
    config: RunConfig,
    out: Path,
    *,
    folds: int = FOLDS,
    seeds: int = SEEDS,
    resume: bool = False,
    device: str = "auto",
    progress: ProgressCallback = lambda _: None,
    registry: TrialRegistry | None = None,
) -> dict[str, Any]:
    """Train every fold with every seed, test each on its fold, and apply the gate to the combined equity curve.

    The bars from the start of the config's validation split to the end of its test split are cut into test spans. Each
    fold validates on as many bars before its test as the config's validation split has, and trains on all bars before
    that. Returns the object of walkforward.json. Raises Interrupted if the user stops it, keeping finished generations.
    """
    if seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {seeds}")
    if config.seed + seeds - 1 > MAX_SEED:
        raise InputError(f"the last of {seeds} seeds must be at most {MAX_SEED}, got {config.seed + seeds - 1}")
    registry = registry or TrialRegistry()
    registry.check_writable()
    config, _ = with_effective_settings(pinned(config))
    panel = load_panel(config)
    planned = plan(config, panel, folds)
    check_lengths(config.gate, len(planned[0].validation), planned[-1].test.last - planned[0].test.first + 1)
    torch_device = pick_device(device)
    try:
        with locked_folder(out, WALK_FORWARD):
            _open(out, config, panel, folds, seeds, resume=resume)
            fold_runs = []
            for fold in planned:
                for i in range(seeds):
                    prefixed = _prefixed(progress, f"fold {fold.number} of {folds}, seed {i + 1} of {seeds}")
                    fold_runs.append(
                        _train(config, panel, fold, config.seed + i, out, registry, torch_device, prefixed)
                    )
            return report_walkforward(config, panel, fold_runs, out, registry, lambda name: progress(_stage(name)))
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; finished generations are kept in {out}. Resume with --resume --out {shlex.quote(str(out))}"
        ) from None


def plan(config: RunConfig, panel: Panel, folds: int) -> tuple[Fold, ...]:
    """Cut the config's validation and test bars into folds."""
    splits = make_splits(panel.times, config.splits)
    return walk_forward_folds(
        splits.train.first,
        splits.validation.first,
        splits.test.last,
        folds,
        len(splits.validation),
        config.splits.embargo,
    )


def fold_config(config: RunConfig, panel: Panel, fold: Fold, seed: int) -> RunConfig:
    """Config of one fold's run: `make_splits` returns the fold's bars for it."""

    def day(bar: int) -> str:
        return stamp(panel.times[bar], panel.bar).removesuffix("Z")

    # `make_splits` takes the embargo off the end of train and validation: their dates reach to the next split.
    dates = SplitConfig(
        train=(day(fold.train.first), day(fold.validation.first - 1)),
        validation=(day(fold.validation.first), day(fold.test.first - 1)),
        test=(day(fold.test.first), day(fold.test.last)),
        embargo=config.splits.embargo,
    )
    return dataclasses.replace(config, seed=seed, splits=dates)


def _train(
    config: RunConfig,
    panel: Panel,
    fold: Fold,
    seed: int,
    out: Path,
    registry: TrialRegistry,
    device: torch.device,
    progress: ProgressCallback,
) -> FoldRun:
    """Train one fold with one seed, or resume its run."""
    own = fold_config(config, panel, fold, seed)
    splits = make_splits(panel.times, own.splits)
    market = make_market(panel, own, splits)
    check_settings(own, market, splits)
    folder = out / f"fold-{fold.number:02d}" / f"seed-{seed}"
    opener = RunDirectory.resume if (folder / "config.json").exists() else RunDirectory.create
    run = opener(folder, own, panel.sha256)
    log = open_trial_log(registry, run, own, panel, market, splits)
    with live_progress(folder) as live_callback:
        callback = both_callbacks(progress, live_callback)
        prepare_start(own, run, market, splits, callback)
        board = run_engine(own, panel, market, splits, run, device, callback, log).leaderboard
    context = EvaluationContext(own, panel, splits, market, training_env(own, market, splits, (0,)).last)
    return FoldRun(fold, seed, context, run, board, champion_of(run, own))


def _open(out: Path, config: RunConfig, panel: Panel, folds: int, seeds: int, *, resume: bool) -> None:
    """Start a walk-forward in a new folder, or check that the one to resume has the same settings."""
    expected = {"config_sha256": config.sha256, "data_sha256": panel.sha256, "folds": folds, "seeds": seeds}
    file = out / WALK_FORWARD
    if not resume:
        if file.exists():
            raise RunError(f"{out} already holds a walk-forward; add --resume to continue it, or choose another --out")
        write_json(file, {**expected, "config": dataclasses.asdict(config)})
        return
    if not file.exists():
        raise RunError(f"there is no walk-forward to resume in {out}; start it without --resume")
    kept = read_json(file)
    for name, value in expected.items():
        if kept.get(name) != value:
            what = name.removesuffix("_sha256")
            raise RunError(
                f"the walk-forward in {out} was started with other {what}; resume it with the original {what}"
            )


def _prefixed(progress: ProgressCallback, where: str) -> ProgressCallback:
    return lambda update: progress(dataclasses.replace(update, stage=f"{where}: {update.stage}"))


def _stage(name: str) -> Progress:
    return Progress(name, 0, 0, 0.0, None, None)
