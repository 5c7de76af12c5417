"""Asynchronous training, faster than `training` if an environment step costs about as much as an update.

Results depend on timing, so runs are neither reproducible nor resumable: a stop keeps the weights reached.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from finrl_pod_envs.gymnasium_pool.env import Episode

from finrl_pod.errors import ConfigError, Interrupted, RunError
from finrl_pod.native.threads import restored_threads
from finrl_pod.protocols import VecEnv
from finrl_pod.rl.training.pipeline import SAMPLE_SECONDS, Pipeline, PipelineStats
from finrl_pod.settings.algorithm_configs import OffPolicyConfig
from finrl_pod.tournament.progress import ProgressCallback
from finrl_pod.user_files import keep, kept_files, pinned, unpinned
from finrl_pod_app.environment_training.config import TrainingConfig, check, open_env
from finrl_pod_app.environment_training.evaluation import EPISODES, Scores, evaluate
from finrl_pod_app.environment_training.folder import WEIGHTS, PipelineSummary, RunFolder, TrainingResult
from finrl_pod_app.environment_training.training import catch_stop_signals, training_progress
from finrl_pod_app.setup.output_folder import RUN, locked_folder


@restored_threads()
def train_async(
    config: TrainingConfig, out: Path, *, evaluation: int = EPISODES, progress: ProgressCallback = lambda _: None
) -> TrainingResult:
    """Train a run; like `training.train`, with statistics of the pipeline in the result.

    Raises ConfigError for invalid settings, RunError if collecting or evaluation fails, Interrupted after Ctrl-C or
    SIGTERM; the weights learned until then are saved.
    """
    check(config)
    config = pinned(config)
    assert isinstance(config.agent, OffPolicyConfig)
    if config.members > 1:
        raise ConfigError(f"--pipeline async trains one member, got --members {config.members}; use --pipeline sync")
    folder = RunFolder(out)
    scores = Scores([[]])
    torch.set_num_threads(config.threads)
    make_env = functools.partial(
        _open_env,
        kept_files(dataclasses.asdict(config)),
        config.env,
        envs=config.envs,
        workers=config.workers or None,
        seconds=config.worker_timeout,
    )
    make_here = functools.partial(open_env, config.env, envs=config.envs, device=config.device)
    timeout = max(SAMPLE_SECONDS, 2 * config.worker_timeout)  # a hanging worker is replaced within its own limit
    pipeline = Pipeline(make_env, config.agent, seed=config.seed, make_here=make_here, timeout=timeout)
    with locked_folder(out, RUN), catch_stop_signals() as signals:
        folder.create(config)
        error = _learn(pipeline, config, scores, signals, progress)
        stats = pipeline.stats
        algorithm = pipeline.algorithm
        if error is not None and not stats.updates:
            raise error
        weights = {f"0.{name}": x for name, x in algorithm.member(0)[0].items()}
        result = _result(config, scores, stats, [bool(x) for x in algorithm.alive], out)
        folder.finish(weights, result)
        if error is not None:
            raise RunError(f"{error}; {_saved_weights_message(stats, config, out)}")
        if not signals:
            with contextlib.suppress(Interrupted):
                returns = evaluate(algorithm.greedy, config, evaluation, is_stopped=lambda: signals)
                result = dataclasses.replace(result, evaluation=returns)
                folder.finish(weights, result)
    if signals:
        raise Interrupted(f"stopped; {_saved_weights_message(stats, config, out)}")
    return result


def _open_env(own_files: Mapping[str, str], name: str, **options: Any) -> VecEnv:
    """`open_env` in a process that does not know the texts of user files yet."""
    keep(own_files)
    return open_env(name, **options)


def _learn(
    pipeline: Pipeline, config: TrainingConfig, scores: Scores, signals: list[int], progress: ProgressCallback
) -> RunError | None:
    """Train until all steps are done or a stop is requested; returns the error that ended it, if any."""
    start_time = time.monotonic()

    def on_episodes(pipeline: Pipeline, episodes: list[Any]) -> bool:
        samples = min(pipeline.stats.samples, config.steps)
        scores.add((Episode(*episode) for episode in episodes), samples, config.steps)
        rate = samples / max(time.monotonic() - start_time, 1e-9)
        progress(training_progress(config, scores, samples, rate, ", asynchronously"))
        return not signals

    with pipeline:
        try:
            pipeline.learn(config.steps, after=on_episodes)
        except RunError as error:  # the weights learned until then are saved
            return error
    return None


def _saved_weights_message(stats: PipelineStats, config: TrainingConfig, out: Path) -> str:
    return (
        f"the weights after {min(stats.samples, config.steps):,} of {config.steps:,} steps are in {out / WEIGHTS}, "
        "and runs with --pipeline async cannot be resumed"
    )


def _result(
    config: TrainingConfig, scores: Scores, stats: PipelineStats, alive: list[bool], out: Path
) -> TrainingResult:
    """The result before the evaluation."""
    return TrainingResult(
        env=unpinned(config.env),
        algorithm=unpinned(config.agent.algorithm),
        seed=config.seed,
        steps=min(stats.samples, config.steps),
        updates=stats.updates,
        seconds=round(stats.seconds, 3),
        samples_per_second=round(stats.samples / max(stats.seconds, 1e-9), 1),
        episodes=scores.episodes,
        unscored=scores.unscored,
        score=scores.member_scores,
        best_score=scores.best,
        curve=scores.curve,
        alive=alive,
        workers_lost=stats.worker_restarts,
        weights=str(out / WEIGHTS),
        pipeline=PipelineSummary(stats.ratio, stats.staleness, stats.most_stale),
    )
