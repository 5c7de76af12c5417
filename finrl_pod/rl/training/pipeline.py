"""Asynchronous training of off-policy algorithms: a collector and a learner run at the same time in two processes.

The collector steps the environments with a copy of the acting weights and writes into a replay buffer in shared memory;
this process draws batches from it, learns and publishes new weights. Each waits for the other, so that updates per
sample stay at `gradient_steps` / (`horizon` x environments) to within `AHEAD` iterations. Results depend on the timing
of the processes; `Learner` alternates both and is reproducible. The buffer is on the device of the environments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.multiprocessing as mp

from finrl_pod.errors import ConfigError, FinrlPodError, InputError, RunError
from finrl_pod.process import STOP_SIGNALS, Parent, die_with_parent, this_process
from finrl_pod.protocols import PooledVecEnv, VecEnv
from finrl_pod.rl.algorithms.factory import make_algorithm
from finrl_pod.rl.algorithms.off_policy import OffPolicy
from finrl_pod.rl.experience import Replay, RolloutCollector
from finrl_pod.settings.algorithm_configs import OffPolicyConfig
from finrl_pod.types import Tensor
from finrl_pod.user_files import own_failures

AHEAD = 8  # iterations by which the collector may lead the learner; also the limit of updates at once, in iterations
WAIT = 2e-4  # seconds between polls
SAMPLE_SECONDS = 120.0
END_SECONDS = 10.0  # limits on the wait for a sample, and for the end of the collector
SAMPLES, WRITTEN, UPDATES, VERSION, STOP, RESTARTS, COUNTS = range(7)  # indices of the shared counts

MakeEnv = Callable[[], VecEnv]


@dataclasses.dataclass(frozen=True)
class _Shared:
    """What the processes of a pipeline share: tensors in shared memory, and the lock of the weights.

    data: tensors of the replay buffer; margin: number of its oldest items, never sampled. versions: [C] updates that
    the acting weights of each item had; weights: latest acting weights; counts: indexed by SAMPLES, WRITTEN, ...
    """

    config: OffPolicyConfig
    seed: int
    data: dict[str, Tensor]
    margin: int
    versions: Tensor
    weights: Tensor
    counts: Tensor
    lock: Any

    def __post_init__(self) -> None:
        for x in (*self.data.values(), self.versions, self.weights, self.counts):
            x.share_memory_()  # type: ignore[no-untyped-call]


class PipelineStats(NamedTuple):
    """Progress of a pipeline.

    ratio: updates per sample since learning started. staleness, most_stale: mean and maximum age of the acting weights
    in updates, when a sample arrived. worker_restarts: environment workers replaced.
    """

    samples: int
    updates: int
    seconds: float
    ratio: float
    staleness: float
    most_stale: int
    worker_restarts: int


class SharedReplay(Replay):
    """Replay buffer written by another process. The oldest items are not sampled, as they may be overwritten."""

    def __init__(self, data: dict[str, Tensor], margin: int, device: torch.device) -> None:
        """device: device of the sampled batches. margin: oldest items that are not sampled."""
        first = next(iter(data.values()))
        self.data = data
        self.device = device
        self._storage_device = first.device
        self.members, self.capacity = first.shape[:2]
        self.written = 0
        self.margin = margin

    @property
    def count(self) -> int:
        """Items of each member that may be sampled."""
        return min(self.written, self.capacity - self.margin)

    def take(self, indices: Tensor) -> dict[str, Tensor]:
        """`Replay.take` with indices that count back from the newest item, 0."""
        items = super().take(((self.written - 1 - indices) % self.capacity).to(self._storage_device))
        return {name: x.to(self.device) for name, x in items.items()}


class Pipeline:
    """Trains `algorithm` while another process collects; a context manager that stops it on exit."""

    def __init__(
        self,
        make_env: MakeEnv,
        config: OffPolicyConfig,
        *,
        seed: int = 0,
        make_here: MakeEnv | None = None,
        timeout: float = SAMPLE_SECONDS,
    ) -> None:
        """make_env: creates the environment in the other process; must be picklable.

        make_here: creates it on the learning device, if that differs. timeout: seconds without a sample after which
        training ends. Raises ConfigError for an algorithm without a replay buffer, and as `make_algorithm`.
        """
        if not isinstance(config, OffPolicyConfig):
            raise ConfigError(f"an async pipeline needs an off-policy algorithm, got {config.algorithm}")
        self.env = make_env()
        self.config = config
        self.timeout = timeout
        algorithm = _make_off_policy(config, self.env, seed)
        self.samples_per_iteration = algorithm.steps_per_iteration * self.env.envs  # of a member
        margin = AHEAD * algorithm.steps_per_iteration * algorithm.adapter.groups
        data = algorithm.replay.data
        capacity = algorithm.replay.capacity
        if capacity < 2 * margin:
            raise ConfigError(
                f"agent.buffer_size must be at least {2 * margin * algorithm.adapter.accounts} in an async pipeline, "
                f"got {config.buffer_size}"
            )
        self.algorithm = (
            algorithm if make_here is None else _make_off_policy(config, make_here(), seed, is_replaced=True)
        )
        context = mp.get_context("spawn")
        try:
            self._link = _Shared(
                config,
                seed,
                data,
                margin,
                versions=torch.zeros(capacity, dtype=torch.int64),
                weights=self._acting_weights().cpu().clone(),  # on the CPU, so that copying waits for the computation
                counts=torch.zeros(COUNTS, dtype=torch.int64),
                lock=context.Lock(),
            )
        except RuntimeError as error:
            raise ConfigError(
                f"agent.buffer_size of {config.buffer_size:,} transitions does not fit into shared memory (/dev/shm): "
                f"{error}; lower it or give the container more (docker run --shm-size)"
            ) from None
        self.algorithm.replay = SharedReplay(data, margin, self.algorithm.device)
        self._counts = self._link.counts
        self._pipe, self._child_end = context.Pipe(duplex=False)
        arguments = (this_process(), make_env, self._link, self._child_end)
        self._process = context.Process(target=_collect, args=arguments, daemon=False)
        self._seconds = 0.0
        self._total_staleness = 0.0
        self._max_staleness = 0
        self._new_items = 0

    def __enter__(self) -> Pipeline:
        # Blocked before the start, so that the child ignores Ctrl-C and SIGTERM from its first instruction on.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._child_end.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._counts[STOP] = 1
        self._process.join(END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()

    def learn(
        self, samples: int, *, after: Callable[[Pipeline, list[Any]], bool | None] = lambda *_: None
    ) -> PipelineStats:
        """Train until `samples` samples per member are collected and learned from.

        after(pipeline, finished episodes) is called periodically; returning False stops. Raises the errors of the
        collector, and RunError if it sends no sample for `timeout` seconds.
        """
        config = self.config
        algorithm = self.algorithm
        counts = self._counts
        per_sample = config.gradient_steps / self.samples_per_iteration
        decays = config.learning_rate_schedule == "linear"
        total = max(samples - config.learning_starts, 1) * per_sample
        start_time = last = fresh = time.perf_counter()
        before = -1
        while True:
            sample_count = min(int(counts[SAMPLES]), samples)
            if sample_count > before:
                before = sample_count
                fresh = time.perf_counter()
            learned_from = sample_count - config.learning_starts
            due = max(learned_from, 0) * config.gradient_steps // self.samples_per_iteration - algorithm.updates
            self._register_items(int(counts[WRITTEN]))
            if due > 0:
                algorithm.samples = sample_count
                algorithm.ages.fill_(sample_count)
                factor = max(1 - algorithm.updates / total, 0.0) if decays else 1.0
                algorithm.learn(min(due, AHEAD * config.gradient_steps), factor)
                self._publish_weights()
                fresh = time.perf_counter()  # the collector may have waited for this
            elif sample_count >= samples:
                break
            elif time.perf_counter() - fresh > self.timeout:
                self._receive_episodes()  # raises the error of the collector, if there is one
                raise RunError(
                    f"the collector has sent no sample for {self.timeout:g} s, the limit: its environment hangs "
                    "while it is created, in reset() or in step()"
                )
            else:
                time.sleep(WAIT)
            now = time.perf_counter()
            self._seconds = now - start_time
            if now - last > 0.1:
                last = now
                if after(self, self._receive_episodes()) is False:
                    break
        after(self, self._receive_episodes())
        return self.stats

    @property
    def stats(self) -> PipelineStats:
        """Progress so far."""
        samples = int(self._counts[SAMPLES])
        updates = self.algorithm.updates
        learned_from = max(samples - self.config.learning_starts, 0)
        stale = self._total_staleness / self._new_items if self._new_items else 0.0
        ratio = updates / learned_from if learned_from else 0.0
        restarts = int(self._counts[RESTARTS])
        return PipelineStats(samples, updates, self._seconds, ratio, stale, self._max_staleness, restarts)

    def _acting_weights(self) -> Tensor:
        return self.algorithm.train_state.parts[self.algorithm.acting_part].parameters.flat

    def _register_items(self, item_count: int) -> None:
        """Register newly written items and the age of their weights."""
        replay = self.algorithm.replay
        if item_count == replay.written:
            return
        rows = torch.arange(max(replay.written, item_count - replay.capacity), item_count) % replay.capacity
        if self.algorithm.updates:
            behind = self.algorithm.updates - self._link.versions[rows]
            self._total_staleness += float(behind.sum())
            self._new_items += len(rows)
            self._max_staleness = max(self._max_staleness, int(behind.max()))
        replay.written = item_count

    def _publish_weights(self) -> None:
        while not self._link.lock.acquire(timeout=1.0):  # the collector may have been killed while holding the lock
            self._check_collector()
        try:
            self._link.weights.copy_(self._acting_weights())
            self._counts[VERSION] = self.algorithm.updates
        finally:
            self._link.lock.release()
        self._counts[UPDATES] = self.algorithm.updates

    def _receive_episodes(self) -> list[Any]:
        """Episodes finished by the collector. Raises RunError if it failed or died."""
        episodes: list[Any] = []
        with contextlib.suppress(EOFError):
            while self._pipe.poll():
                kind, what = self._pipe.recv()
                if kind == "refused":
                    raise RunError(what)
                if kind == "failed":
                    raise RunError(f"the collector failed: {what}")
                episodes += what
        self._check_collector()
        return episodes

    def _check_collector(self) -> None:
        if not self._process.is_alive() and not self._counts[STOP]:
            raise RunError(
                f"the collector process ended with exit code {self._process.exitcode}; it may have been killed"
            )


def _make_off_policy(config: OffPolicyConfig, env: VecEnv, seed: int, *, is_replaced: bool = False) -> OffPolicy:
    """The algorithm of a config. is_replaced: its buffer is minimal, to be replaced by the shared one."""
    if is_replaced:
        config = dataclasses.replace(config, buffer_size=max(config.batch_size, env.envs))
    algorithm = make_algorithm(config, env, seed=seed)
    assert isinstance(algorithm, OffPolicy)
    return algorithm


def _collect(parent: Parent, make_env: MakeEnv, link: _Shared, pipe: Any) -> None:
    """Main function of the collector process."""
    die_with_parent(parent)
    torch.set_num_threads(1)
    env = None
    try:
        with own_failures():
            env = make_env()
            algorithm = _make_off_policy(link.config, env, link.seed, is_replaced=True)
            algorithm.replay = SharedReplay(link.data, link.margin, algorithm.device)
            _collect_loop(algorithm, RolloutCollector(env, link.seed), link, pipe)
    except InputError as error:
        pipe.send(("refused", str(error)))
    except (FinrlPodError, ValueError, RuntimeError) as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
    finally:
        if isinstance(env, PooledVecEnv):
            env.close()


def _collect_loop(algorithm: OffPolicy, collector: RolloutCollector, link: _Shared, pipe: Any) -> None:
    config = algorithm.config
    replay = algorithm.replay
    counts = link.counts
    samples_per_iteration = algorithm.steps_per_iteration * collector.env.envs
    ahead = AHEAD * samples_per_iteration
    per_sample = config.gradient_steps / samples_per_iteration
    pool = collector.env if isinstance(collector.env, PooledVecEnv) else None
    acting = algorithm.train_state.parts[algorithm.acting_part].parameters.flat
    version = 0
    while not counts[STOP]:
        if algorithm.samples > config.learning_starts + int(counts[UPDATES]) / per_sample + ahead:
            time.sleep(WAIT)
            continue
        if int(counts[VERSION]) != version:
            with link.lock:
                acting.copy_(link.weights)
                version = int(counts[VERSION])
        start = replay.written
        algorithm.collect(collector)
        if algorithm.device.type == "cuda":
            torch.cuda.synchronize(algorithm.device)  # write the items before counting them
        link.versions[torch.arange(start, replay.written) % replay.capacity] = version
        if pool is not None:
            counts[RESTARTS] = pool.worker_restarts
            # Before the samples are counted: a learner that has seen them all then has their episodes, too.
            if episodes := [tuple(episode) for episode in pool.episodes()]:
                pipe.send(("episodes", episodes))
        counts[WRITTEN] = replay.written
        counts[SAMPLES] = algorithm.samples
