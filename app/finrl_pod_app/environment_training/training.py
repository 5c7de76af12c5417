"""Training on environments without a market, with checkpoints or asynchronously, and the evaluation at its end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from finrl_pod_envs.gymnasium_pool.env import Episode

from finrl_pod.errors import ConfigError, Interrupted, RunError
from finrl_pod.native.device import restored_threads
from finrl_pod.protocols import JointVecEnv, ResumableVecEnv, VecEnv
from finrl_pod.rl.algorithms.base import Metrics, TrainedAlgorithm
from finrl_pod.rl.multi_agent.training import League, check_algorithm
from finrl_pod.rl.training.learner import Callback, Learner
from finrl_pod.rl.training.pipeline import SAMPLE_SECONDS, Pipeline
from finrl_pod.settings.algorithm_configs import OffPolicyConfig, OnPolicyConfig, TrainedAgentConfig
from finrl_pod.tournament.progress import Progress, ProgressCallback
from finrl_pod.user_files import keep, kept_files, pinned, unpinned
from finrl_pod_app.environment_training.config import Environment, TrainingConfig, check, open_env
from finrl_pod_app.environment_training.environments import league_view, training_env
from finrl_pod_app.environment_training.evaluation import EPISODES, EvaluationResult, Scores, episode_metrics, evaluate
from finrl_pod_app.environment_training.folder import (
    WEIGHTS,
    MarketResult,
    MarketScores,
    PipelineSummary,
    RunFolder,
    TrainingResult,
)
from finrl_pod_app.setup.output_folder import RUN, check_room, locked_folder
from finrl_pod_app.setup.training_loggers import open_logger

SAVE_SECONDS = 60.0
PROGRESS_SECONDS = 0.2
_log = logging.getLogger(__name__)


@restored_threads()
def train(
    config: TrainingConfig,
    out: Path,
    *,
    resume: bool = False,
    save_seconds: float = SAVE_SECONDS,
    evaluation: int = EPISODES,
    progress: ProgressCallback = lambda _: None,
    logger: str | None = None,
    callback: Callback | None = None,
    score: Callable[[Learner], MarketScores] | None = None,
) -> TrainingResult:
    """Train a new run, or continue the run in `out`, with more steps if it has finished.

    logger: kind of `open_logger` that writes into out/logs. callback: as of `Learner.learn`. Both get the metrics of an
    iteration with the means of its finished episodes, `episode_metrics`. score: exact scores on a built-in market.

    Raises ConfigError for invalid settings, RunError for an unsuitable folder or a failing environment, Interrupted
    after Ctrl-C or SIGTERM with everything saved.
    """
    check(config)
    check_room(out)
    folder = RunFolder(out)
    saved_config = folder.config() if resume else None  # keeps the files of the run
    config = pinned(config)
    if not save_seconds >= 0:
        raise ConfigError(f"--save-every must be 0 seconds or more, got {save_seconds:g}")
    if config.many is not None:
        check_algorithm(config.many, config.agent)
    if saved_config is not None:
        _check_same_settings(config, pinned(saved_config), out)
        result = folder.result(TrainingResult if score is None else MarketResult)
        if result is not None and result.steps >= config.steps:
            return result
        if result is not None and not folder.has_checkpoint:
            raise RunError(
                f"{out} has no checkpoint to continue from: {unpinned(config.env)} has no checkpoint() and resume(); "
                "train anew in another folder"
            )
    env = training_env(config)
    with contextlib.closing(env), catch_stop_signals() as signals:
        learner = Learner(env, config.agent, seed=config.seed, threads=config.threads)
        with locked_folder(out, RUN):
            if saved_config is None:
                folder.create(config)
            elif config.steps > saved_config.steps:
                folder.write_config(config)
            with contextlib.ExitStack() as stack:
                log = stack.enter_context(open_logger(logger, out / "logs" / logger)).report if logger else None
                run = _TrainingRun(config, folder, env, learner, progress, log, callback, score)
                return run.run(signals, save_seconds, evaluation)


class _TrainingRun:
    def __init__(
        self,
        config: TrainingConfig,
        folder: RunFolder,
        env: Environment,
        learner: Learner,
        progress: ProgressCallback,
        log: Callback | None,
        callback: Callback | None,
        score: Callable[[Learner], MarketScores] | None,
    ) -> None:
        self.config = config
        self.folder = folder
        self.env = env
        self.learner = learner
        self._report = progress
        self._log = log
        self._callback = callback
        self._score = score
        self._each = env.agents if isinstance(env, JointVecEnv) and env.is_shared else 1  # samples in a step
        view = league_view(env)
        self._league = None if view is None else League(view, learner, samples=config.steps)
        self._alive = learner.alive
        self._capacity = learner.algorithm.slot_items
        self._resumable = isinstance(env, ResumableVecEnv)
        self.scores = Scores([[] for _ in range(env.members)])
        self.seconds = 0.0
        self.losses = 0
        if (checkpoint := folder.load(self._capacity)) is not None:
            tensors, state = checkpoint
            learner.resume(tensors)
            self.scores = state.scores
            self.seconds = state.seconds
            self.losses = state.losses

    @property
    def steps(self) -> int:
        """Environment steps of a member so far."""
        return self.learner.samples[0] // self._each

    def run(self, signals: list[int], save_seconds: float, evaluation: int) -> TrainingResult:
        config = self.config
        learner = self.learner
        first = self.steps
        start_time = last_save = time.monotonic()
        last_report = 0.0
        seconds_before = self.seconds

        def on_iteration(_: Learner, metrics: Metrics) -> bool:
            nonlocal last_save, last_report
            if self._league is not None:
                self._league.advance()
            now = time.monotonic()
            samples = self.steps
            self.seconds = seconds_before + now - start_time
            if episodes := self.env.episodes():
                self.scores.add(episodes, samples, config.steps)
                metrics = {**metrics, **episode_metrics(episodes, self.env.members)}
            is_stopped = False
            for report in (self._log, self._callback):
                is_stopped |= report is not None and report(learner, metrics) is False
            if now - last_report >= PROGRESS_SECONDS:
                last_report = now
                rate = (samples - first) / max(now - start_time, 1e-9)
                self._report(training_progress(config, self.scores, samples, rate))
                self._warn_of_losses()
            if now - last_save >= save_seconds:
                self.save()
                last_save = time.monotonic()
            return not (signals or is_stopped)

        left = config.steps - first
        iteration = learner.iteration_samples // self._each
        if first == 0 and iteration > left:
            _log.warning("training on %s steps, not %s: an iteration has as many", f"{iteration:,}", f"{left:,}")
        if left > 0:
            rate_of = self._rate if self._league is None else self._league.rate
            learner.learn(left * self._each, callback=on_iteration, schedule=rate_of)
        self._warn_of_losses()
        self._warn_of_equal_rewards()
        self.save()  # the evaluation may be interrupted or fail
        if signals and not self._resumable:
            self._finish(None)
            raise Interrupted(
                f"stopped after {self.steps:,} of {config.steps:,} steps; the weights are saved in "
                f"{self.folder.path}, and the run cannot be resumed: {unpinned(config.env)} has no checkpoint() and "
                "resume()"
            )
        if signals and self.steps < config.steps:
            raise Interrupted(
                f"stopped after {self.steps:,} of {config.steps:,} steps, all progress is saved: "
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
        if self._log is not None and evaluation_result is not None:
            means = [math.nan if mean is None else mean for mean in evaluation_result.mean]
            self._log(learner, {"evaluation_return": torch.tensor(means)})
        result = self._finish(evaluation_result)
        if failure is not None:
            raise RunError(f"the trained agent is saved in {self.folder.path}, but its evaluation failed: {failure}")
        return result

    def _rate(self, age: int) -> float:
        """Factor of the learning rate after `age` samples of the learner."""
        agent = self.config.agent
        linear = isinstance(agent, TrainedAgentConfig) and agent.learning_rate_schedule == "linear"
        return 1 - age / (self.config.steps * self._each) if linear else 1.0

    def _warn_of_losses(self) -> None:
        """Tell of members that have stopped to learn since the last call."""
        alive = self.learner.alive
        warn_of_losses(self.config, [p for p, is_alive in enumerate(alive) if self._alive[p] and not is_alive])
        self._alive = alive

    def _warn_of_equal_rewards(self) -> None:
        """Tell that scaling has changed no reward: rewards of the first samples are all equal."""
        algorithm = self.learner.algorithm
        is_on = isinstance(self.config.agent, OnPolicyConfig | OffPolicyConfig) and self.config.agent.scale_rewards
        if is_on and isinstance(algorithm, TrainedAlgorithm) and bool((algorithm.reward_scale == 1).all()):
            _log.warning("agent.scale_rewards = true changes nothing: all rewards of the first samples are equal")

    def save(self) -> None:
        """Save a checkpoint from which the run continues exactly, if the environment can."""
        if self._resumable:
            tensors = self.learner.checkpoint(self.folder.item_count)
            losses = self.losses + self.env.worker_restarts
            self.folder.save(tensors, self.scores, self.seconds, losses, self._capacity)

    def _finish(self, evaluation: EvaluationResult | None) -> TrainingResult:
        """Save weights ("P.NAME" -> tensor) and result."""
        learner = self.learner
        result = _result(
            self.config,
            self.folder.path,
            self.scores,
            steps=self.steps,
            updates=getattr(learner.algorithm, "updates", None),
            seconds=self.seconds,
            alive=learner.alive,
            workers_lost=self.losses + self.env.worker_restarts,
            evaluation=evaluation,
        )
        if self._score is not None:
            result = MarketResult(**vars(result), **vars(self._score(learner)))
        members = [learner.algorithm.member(p)[0] for p in range(learner.env.members)]
        self.folder.finish({f"{p}.{name}": x for p, member in enumerate(members) for name, x in member.items()}, result)
        return result


@restored_threads()
def train_async(
    config: TrainingConfig, out: Path, *, evaluation: int = EPISODES, progress: ProgressCallback = lambda _: None
) -> TrainingResult:
    """Train like `train`, with environments stepped in a second process while this one learns.

    Faster if an environment step costs about as much as an update. Results depend on timing, so runs are neither
    reproducible nor resumable: a stop keeps the weights reached. Raises ConfigError for invalid settings, RunError if
    collecting or evaluation fails, Interrupted after Ctrl-C or SIGTERM.
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
        workers=config.workers,
        seconds=config.worker_timeout,
        arguments=config.env_args,
    )
    make_here = functools.partial(
        open_env, config.env, envs=config.envs, device=config.device, arguments=config.env_args
    )
    timeout = max(SAMPLE_SECONDS, 2 * config.worker_timeout)  # a hanging worker is replaced within its own limit
    pipeline = Pipeline(make_env, config.agent, seed=config.seed, make_here=make_here, timeout=timeout)
    start_time = time.monotonic()
    error: RunError | None = None
    with locked_folder(out, RUN), catch_stop_signals() as signals:
        folder.create(config)

        def on_episodes(pipeline: Pipeline, episodes: list[Any]) -> bool:
            samples = min(pipeline.stats.samples, config.steps)
            scores.add((Episode(*episode) for episode in episodes), samples, config.steps)
            rate = samples / max(time.monotonic() - start_time, 1e-9)
            progress(training_progress(config, scores, samples, rate, ", asynchronously"))
            return not signals

        with pipeline:
            try:
                pipeline.learn(config.steps, after=on_episodes)
            except RunError as failure:  # the weights learned until then are saved
                error = failure
        stats = pipeline.stats
        algorithm = pipeline.algorithm
        warn_of_losses(config, [p for p, is_alive in enumerate(algorithm.alive) if not is_alive])
        if error is not None and not stats.updates:
            raise error
        samples = min(stats.samples, config.steps)
        result = _result(
            config,
            out,
            scores,
            steps=samples,
            updates=stats.updates,
            seconds=stats.seconds,
            alive=[bool(x) for x in algorithm.alive],
            workers_lost=stats.worker_restarts,
            pipeline=PipelineSummary(stats.ratio, stats.staleness, stats.most_stale),
        )
        weights = {f"0.{name}": x for name, x in algorithm.member(0)[0].items()}
        folder.finish(weights, result)
        saved_weights = (
            f"the weights after {samples:,} of {config.steps:,} steps are in {out / WEIGHTS}, and runs with --pipeline "
            "async cannot be resumed"
        )
        if error is not None:
            raise RunError(f"{error}; {saved_weights}")
        if not signals:
            with contextlib.suppress(Interrupted):
                returns = evaluate(algorithm.greedy, config, evaluation, is_stopped=lambda: signals)
                result = dataclasses.replace(result, evaluation=returns)
                folder.finish(weights, result)
    if signals:
        raise Interrupted(f"stopped; {saved_weights}")
    return result


def _open_env(own_files: Mapping[str, str], name: str, **options: Any) -> VecEnv:
    """`open_env` in a process that does not know the texts of user files yet."""
    keep(own_files)
    return open_env(name, **options)


def _result(
    config: TrainingConfig, out: Path, scores: Scores, *, steps: int, seconds: float, **measurements: Any
) -> TrainingResult:
    """The result of a run. seconds: duration of the training. measurements: other fields of `TrainingResult`."""
    return TrainingResult(
        env=unpinned(config.env),
        algorithm=config.algorithm,
        seed=config.seed,
        steps=steps,
        seconds=round(seconds, 3),
        samples_per_second=round(steps * config.members / max(seconds, 1e-9), 1),
        episodes=scores.episodes,
        unscored=scores.unscored,
        score=scores.member_scores,
        best_score=scores.best,
        curve=scores.curve,
        weights=str(out / WEIGHTS),
        **measurements,
    )


def warn_of_losses(config: TrainingConfig, lost_members: Sequence[int]) -> None:
    """Tell which members have stopped to learn."""
    word = "member" if config.many is None else "agent"
    for p in lost_members:
        _log.warning(
            "%s %d of %s diverged: its loss is NaN or infinite, as after a reward that is; it keeps its weights and "
            "learns no more",
            word,
            p,
            unpinned(config.env),
        )


def training_progress(config: TrainingConfig, scores: Scores, samples: int, rate: float, mode: str = "") -> Progress:
    """Progress of all members. samples and rate are counts per member. mode: text behind the name of the stage."""
    return Progress(
        stage=f"training {config.algorithm} on {unpinned(config.env)}{mode}",
        samples=samples * config.members,
        total_samples=config.steps * config.members,
        samples_per_second=rate * config.members,
        best=None,
        seconds_left=max(config.steps - samples, 0) / rate if rate > 0 else None,
        detail="" if scores.best is None else f"score {scores.now:.1f}, best {scores.best:.1f}",
    )


def _check_same_settings(config: TrainingConfig, run_config: TrainingConfig, out: Path) -> None:
    """Raises RunError if the settings of a resumed run differ from its own."""
    if config.env != run_config.env and unpinned(config.env) == unpinned(run_config.env):
        raise RunError(
            f"{unpinned(config.env)} has changed since the run in {out} began; train anew with another --out"
        )
    values = {**vars(config), **vars(config.agent)}
    for name, run_value in {**vars(run_config), **vars(run_config.agent)}.items():
        value = values.get(name)
        is_more = name == "steps" and value is not None and value > run_value
        if name not in ("agent", "workers", "worker_timeout") and value != run_value and not is_more:
            raise RunError(
                f"{out} holds a run with {name} {run_value}, got {value}; use the same value or another --out"
            )


@contextlib.contextmanager
def catch_stop_signals() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM, to stop after the current iteration; a second signal stops immediately.

    Only the main thread gets signals.
    """
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return

    def handle(number: int, _: Any) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)
        _log.warning("stopping after this iteration; Ctrl-C again stops at once and loses what is not saved")

    handlers = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
