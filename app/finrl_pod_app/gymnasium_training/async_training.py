"""Training with collecting and learning at once: quicker where a step of the environment costs as much as an update.

It cannot be repeated exactly, so it is not continued either: a stop keeps the weights that were reached.
"""

from __future__ import annotations

import contextlib
import functools
import time
from pathlib import Path
from typing import Any

import torch
from finrl_pod_envs.gymnasium_pool.env import Episode, GymnasiumVecEnv

from finrl_pod.errors import ConfigError, Interrupted, RunError
from finrl_pod.rl.training.pipeline import Figures, Pipeline
from finrl_pod.settings.algorithm_configs import OffPolicyConfig
from finrl_pod.tournament.progress import Progress, ProgressCallback
from finrl_pod_app.gymnasium_training.config import TrainingConfig, check
from finrl_pod_app.gymnasium_training.evaluation import EPISODES, evaluate
from finrl_pod_app.gymnasium_training.folder import WEIGHTS, RunFolder
from finrl_pod_app.gymnasium_training.scores import Scores
from finrl_pod_app.gymnasium_training.training import catch_stop_signals
from finrl_pod_app.services.output_folder import RUN, locked_folder


def train_async(
    config: TrainingConfig, out: Path, *, evaluation: int = EPISODES, progress: ProgressCallback = lambda _: None
) -> dict[str, Any]:
    """As `training.train`, with figures of the pipeline in the result.

    Raises ConfigError for settings that cannot be, RunError where collecting or the evaluation fails, Interrupted after
    Ctrl-C or SIGTERM; in all of these what was learned is kept.
    """
    check(config)
    assert isinstance(config.agent, OffPolicyConfig)
    if config.members > 1:
        raise ConfigError(f"--pipeline async trains one member, got --members {config.members}; use --pipeline sync")
    folder, scores = RunFolder(out), Scores(config.members, config.steps)
    torch.set_num_threads(config.threads)
    make_env = functools.partial(
        GymnasiumVecEnv, config.env, envs=config.envs, workers=config.workers or None, seconds=config.worker_timeout
    )
    make_here = functools.partial(GymnasiumVecEnv, config.env, envs=config.envs, device=config.device)
    pipeline = Pipeline(make_env, config.agent, seed=config.seed, make_here=make_here)
    with locked_folder(out, RUN), catch_stop_signals() as asked:
        folder.begin(config.plain())
        ended = _learn(pipeline, config, scores, asked, progress)
        figures, algorithm = pipeline.figures, pipeline.algorithm
        if ended is not None and not figures.updates:
            raise ended
        weights = {f"0.{name}": x for name, x in algorithm.member(0)[0].items()}
        result = _result(config, scores, figures, [bool(x) for x in algorithm.alive], out)
        folder.finish(weights, result)
        if ended is not None:
            raise RunError(f"{ended}; {_kept(figures, config, out)}")
        if not asked:
            with contextlib.suppress(Interrupted):
                result["evaluation"] = evaluate(algorithm.greedy, config, evaluation, stopped=lambda: asked)
                folder.finish(weights, result)
    if asked:
        raise Interrupted(f"stopped; {_kept(figures, config, out)}")
    return result


def _learn(
    pipeline: Pipeline, config: TrainingConfig, scores: Scores, asked: list[int], progress: ProgressCallback
) -> RunError | None:
    """Until all steps are done or a stop is asked for; returns why it ended before, where something failed."""
    began = time.monotonic()

    def after(pipeline: Pipeline, episodes: list[Any]) -> bool:
        samples = min(pipeline.figures.samples, config.steps)
        scores.add((Episode(*episode) for episode in episodes), samples)
        rate = samples / max(time.monotonic() - began, 1e-9)
        progress(
            Progress(
                stage=f"training {config.agent.algorithm} on {config.env}, collecting and learning at once",
                samples=samples,
                total_samples=config.steps,
                samples_per_second=rate,
                best=None,
                seconds_left=(config.steps - samples) / rate if rate else None,
                detail="" if scores.best is None else f"score {scores.now:.1f}, best {scores.best:.1f}",
            )
        )
        return not asked

    with pipeline:
        try:
            pipeline.learn(config.steps, after=after)
        except RunError as error:  # what was learned until then is kept
            return error
    return None


def _kept(figures: Figures, config: TrainingConfig, out: Path) -> str:
    return (
        f"the weights after {min(figures.samples, config.steps):,} of {config.steps:,} steps are in {out / WEIGHTS}, "
        "and a run with --pipeline async is not continued"
    )


def _result(config: TrainingConfig, scores: Scores, figures: Figures, alive: list[bool], out: Path) -> dict[str, Any]:
    """As result.json holds it, before an evaluation."""
    return {
        "env": config.env,
        "algorithm": config.agent.algorithm,
        "seed": config.seed,
        "steps": min(figures.samples, config.steps),
        "updates": figures.updates,
        "seconds": round(figures.seconds, 3),
        "samples_per_second": round(figures.samples / max(figures.seconds, 1e-9), 1),
        "episodes": scores.episodes,
        "unscored": scores.unscored,
        "score": scores.each,
        "best_score": scores.best,
        "curve": scores.curve,
        "evaluation": None,
        "alive": alive,
        "workers_lost": figures.worker_restarts,
        "pipeline": {"ratio": figures.ratio, "staleness": figures.staleness, "most_stale": figures.most_stale},
        "weights": str(out / WEIGHTS),
    }
