"""Training loop: progress, checkpoints, clean stops, and evaluation at the end."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from finrl_pod_envs.custom.episode_recorder import EpisodeRecorder
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv

from finrl_pod.errors import ConfigError, Interrupted, RunError
from finrl_pod.native.threads import restored_threads
from finrl_pod.protocols import ResumableVecEnv
from finrl_pod.rl.algorithms.base import Metrics
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import TrainedAgentConfig
from finrl_pod.tournament.progress import Progress, ProgressCallback
from finrl_pod.user_files import pinned, unpinned
from finrl_pod_app.environment_training.config import TrainingConfig, check, open_env
from finrl_pod_app.environment_training.evaluation import EPISODES, EvaluationResult, Scores, evaluate
from finrl_pod_app.environment_training.folder import WEIGHTS, RunFolder, TrainingResult
from finrl_pod_app.setup.output_folder import RUN, locked_folder
from finrl_pod_app.setup.training_loggers import TrainingLogger, open_logger

SAVE_SECONDS = 60.0
PROGRESS_SECONDS = 0.2


@restored_threads()
def train(
    config: TrainingConfig,
    out: Path,
    *,
    resume: bool = False,
    save_seconds: float = SAVE_SECONDS,
    evaluation: int = EPISODES,
    progress: ProgressCallback = lambda _: None,
    loggers: Sequence[str] = (),
) -> TrainingResult:
    """Train a new run, or continue the run in `out`.

    loggers: kinds of `training_loggers.LOGGERS` that write into out/logs.

    Raises ConfigError for invalid settings, RunError for an unsuitable folder or a failing environment, Interrupted
    after Ctrl-C or SIGTERM with everything saved.
    """
    check(config)
    folder = RunFolder(out)
    saved_config = folder.config() if resume else None  # keeps the files of the run
    config = pinned(config)
    if not save_seconds >= 0:
        raise ConfigError(f"--save-every must be 0 seconds or more, got {save_seconds:g}")
    if saved_config is not None:
        _check_same_settings(config, pinned(saved_config), out)
        if (result := folder.result()) is not None:
            return result
    with contextlib.closing(_make_env(config)) as env, catch_stop_signals() as signals:
        learner = Learner(env, config.agent, seed=config.seed, threads=config.threads)
        with locked_folder(out, RUN):
            if not resume:
                folder.create(config)
            with contextlib.ExitStack() as stack:
                reports = [stack.enter_context(_open_logger(kind, out, config)).report for kind in loggers]
                training = _TrainingRun(config, folder, env, learner, progress, reports)
                return training.run(signals, save_seconds, evaluation)


class _TrainingRun:
    def __init__(
        self,
        config: TrainingConfig,
        folder: RunFolder,
        env: GymnasiumVecEnv | EpisodeRecorder,
        learner: Learner,
        progress: ProgressCallback,
        reports: Sequence[Callable[[Learner, Metrics], object]] = (),
    ) -> None:
        self._reports = reports
        self.config = config
        self.folder = folder
        self.env = env
        self.learner = learner
        self._report = progress
        self.scores = Scores([[] for _ in range(config.members)])
        self.seconds = 0.0
        self.losses = 0
        if (checkpoint := folder.load(self._capacity)) is not None:
            tensors, state = checkpoint
            learner.resume(tensors)
            self.scores = state.scores
            self.seconds = state.seconds
            self.losses = state.losses

    def run(self, signals: list[int], save_seconds: float, evaluation: int) -> TrainingResult:
        config = self.config
        learner = self.learner
        first = learner.samples[0]
        start_time = last_save = time.monotonic()
        last_report = 0.0
        seconds_before = self.seconds

        def on_iteration(_: Learner, metrics: Metrics) -> bool:
            nonlocal last_save, last_report
            for log in self._reports:
                log(learner, metrics)
            now = time.monotonic()
            samples = learner.samples[0]
            self.seconds = seconds_before + now - start_time
            if episodes := self.env.episodes():
                self.scores.add(episodes, samples, config.steps)
            if now - last_report >= PROGRESS_SECONDS:
                last_report = now
                rate = (samples - first) / max(now - start_time, 1e-9)
                self._report(training_progress(config, self.scores, samples, rate))
            if now - last_save >= save_seconds:
                self.save()
                last_save = time.monotonic()
            return not signals

        left = config.steps - first
        if left > 0:
            agent = config.agent
            linear = isinstance(agent, TrainedAgentConfig) and agent.learning_rate_schedule == "linear"
            learner.learn(left, callback=on_iteration, schedule=lambda age: 1 - age / config.steps if linear else 1.0)
        self.save()  # the evaluation may be interrupted or fail
        if signals and not self._resumable:
            self.folder.finish(_all_weights(learner), self._result(None))
            raise Interrupted(
                f"stopped after {learner.samples[0]:,} of {config.steps:,} steps; the weights are saved in "
                f"{self.folder.path}, and the run cannot be resumed: {config.env} has no checkpoint() and resume()"
            )
        if signals and learner.samples[0] < config.steps:
            raise Interrupted(
                f"stopped after {learner.samples[0]:,} of {config.steps:,} steps, all progress is saved: "
                "continue with the same command and --resume"
            )
        evaluation_result = None
        failure: RunError | None = None
        try:
            evaluation_result = evaluate(learner.act, config, evaluation, is_stopped=lambda: signals)
        except Interrupted:
            raise Interrupted(
                f"stopped after all {config.steps:,} steps, during evaluation; all progress is saved: continue with "
                "the same command and --resume"
            ) from None
        except RunError as error:
            failure = error
        result = self._result(evaluation_result)
        self.folder.finish(_all_weights(learner), result)
        if failure is not None:
            raise RunError(f"the trained agent is saved in {self.folder.path}, but its evaluation failed: {failure}")
        return result

    def save(self) -> None:
        """Save a checkpoint from which the run continues exactly, if the environment can."""
        if not self._resumable:
            return
        tensors = self.learner.checkpoint(self.folder.item_count)
        self.folder.save(tensors, self.scores, self.seconds, self._losses(), self._capacity)

    @property
    def _resumable(self) -> bool:
        return isinstance(self.env, ResumableVecEnv)

    @property
    def _capacity(self) -> int:
        return self.learner.algorithm.slot_items

    def _losses(self) -> int:
        return self.losses + self.env.worker_restarts

    def _result(self, evaluation: EvaluationResult | None) -> TrainingResult:
        learner = self.learner
        return TrainingResult(
            env=unpinned(self.config.env),
            algorithm=unpinned(self.config.agent.algorithm),
            seed=self.config.seed,
            steps=learner.samples[0],
            updates=getattr(learner.algorithm, "updates", None),
            seconds=round(self.seconds, 3),
            samples_per_second=round(learner.samples[0] * self.config.members / max(self.seconds, 1e-9), 1),
            episodes=self.scores.episodes,
            unscored=self.scores.unscored,
            score=self.scores.member_scores,
            best_score=self.scores.best,
            curve=self.scores.curve,
            alive=learner.alive,
            workers_lost=self._losses(),
            weights=str(self.folder.path / WEIGHTS),
            evaluation=evaluation,
        )


def training_progress(config: TrainingConfig, scores: Scores, samples: int, rate: float, mode: str = "") -> Progress:
    """Progress of all members. samples and rate are counts per member. mode: text behind the name of the stage."""
    return Progress(
        stage=f"training {unpinned(config.agent.algorithm)} on {unpinned(config.env)}{mode}",
        samples=samples * config.members,
        total_samples=config.steps * config.members,
        samples_per_second=rate * config.members,
        best=None,
        seconds_left=max(config.steps - samples, 0) / rate if rate > 0 else None,
        detail="" if scores.best is None else f"score {scores.now:.1f}, best {scores.best:.1f}",
    )


def _open_logger(kind: str, out: Path, config: TrainingConfig) -> TrainingLogger:
    values = config.to_dict()
    agent = {f"agent.{name}": value for name, value in values.pop("agent").items()}
    return open_logger(kind, out / "logs" / kind, {**values, **agent})


def _make_env(config: TrainingConfig) -> GymnasiumVecEnv | EpisodeRecorder:
    return open_env(
        config.env,
        envs=config.envs,
        workers=config.workers or None,
        members=range(config.members),
        seconds=config.worker_timeout,
        device=config.device,
    )


def _all_weights(learner: Learner) -> dict[str, torch.Tensor]:
    """Weights of all members: "P.NAME" -> tensor."""
    return {f"{p}.{name}": x for p in range(learner.env.members) for name, x in learner.algorithm.member(p)[0].items()}


def _check_same_settings(config: TrainingConfig, run_config: TrainingConfig, out: Path) -> None:
    """Raises RunError if the settings of a resumed run differ from its own."""
    values = {**vars(config), **vars(config.agent)}
    for name, run_value in {**vars(run_config), **vars(run_config.agent)}.items():
        value = values.get(name)
        if name not in ("agent", "workers", "worker_timeout") and value != run_value:
            raise RunError(
                f"{out} holds a run with {name} {run_value}, got {value}; use the same value or another --out"
            )


@contextlib.contextmanager
def catch_stop_signals() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM, to stop after the current iteration; a second signal stops immediately."""
    signals: list[int] = []

    def handle(number: int, _: Any) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)

    handlers = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
