"""Collecting and learning at once, for algorithms with a replay: two processes around one replay in shared memory.

One process steps the environments with a copy of the acting weights and writes into the ring; this one draws from it,
learns, and hands over new weights. Both wait for each other so that updates / samples stays at the config's
`updates` / (`horizon` x environments), never more than `AHEAD` rounds of samples off. How old the acting weights were
is measured, in updates. What is learned depends on which process was quicker: `Learner` does the same in turns and
repeats exactly.

The ring is on the device where the environments' observations are: a market's own, the CPU for others. This process may
learn on another: what it draws is moved there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.multiprocessing as mp

from finrl_pod.errors import ConfigError, FinrlPodError, RunError
from finrl_pod.process import STOP_SIGNALS, Parent, die_with_parent, this_process
from finrl_pod.protocols import PooledVecEnv, VecEnv
from finrl_pod.rl.algorithms.off_policy import OffPolicy
from finrl_pod.rl.algorithms.registry import make_algorithm
from finrl_pod.rl.buffers.replay import Replay
from finrl_pod.rl.training.worker import Worker
from finrl_pod.settings.algorithm_configs import OffPolicyConfig
from finrl_pod.types import Tensor

AHEAD = 8  # rounds of samples that may be collected before they are learned from, and the most updates done in one go
WAIT = 2e-4  # seconds between two looks
START_SECONDS, END_SECONDS = 120.0, 10.0
SEEN, WRITTEN, UPDATES, VERSION, STOP, LOST, PLACES = range(7)  # of the shared counts

MakeEnv = Callable[[], VecEnv]


class Figures(NamedTuple):
    """What a pipeline has done. ratio: updates a sample since the warm-up. staleness: updates that the learner had done
    beyond the weights that a sample was collected with, when it arrived; mean and most. worker_restarts: workers of the
    environment that were replaced."""

    samples: int
    updates: int
    seconds: float
    ratio: float
    staleness: float
    most_stale: int
    worker_restarts: int


class SharedReplay(Replay):
    """A ring that another process writes. The oldest items, which it may be overwriting, are not drawn."""

    def __init__(self, data: dict[str, Tensor], margin: int, device: torch.device) -> None:
        """device: where what is drawn is wanted."""
        first = next(iter(data.values()))
        self.data, self.device, self._kept_on = data, device, first.device
        self.members, self.capacity = first.shape[:2]
        self.written, self.margin = 0, margin

    @property
    def count(self) -> int:
        """Items of a member that can be learned from."""
        return min(self.written, self.capacity - self.margin)

    def take(self, chosen: Tensor) -> dict[str, Tensor]:
        """As `Replay.take`, 0 being the newest item."""
        drawn = super().take(((self.written - 1 - chosen) % self.capacity).to(self._kept_on))
        return {name: x.to(self.device) for name, x in drawn.items()}


class Pipeline:
    """Trains `algorithm` while another process collects. Use it as a context: leaving it ends the other process."""

    def __init__(
        self, make_env: MakeEnv, config: OffPolicyConfig, *, seed: int = 0, make_here: MakeEnv | None = None
    ) -> None:
        """make_env: makes the environment that is stepped, over there; it is pickled. make_here: the same on the device
        that is to learn, where that is another.

        Raises ConfigError for an algorithm without a replay, and as `make_algorithm`.
        """
        if not isinstance(config, OffPolicyConfig):
            raise ConfigError(f"a pipeline needs an algorithm with a replay, got {config.algorithm}")
        self.env, self.config = make_env(), config
        algorithm = _made(config, self.env, seed)
        self.round = algorithm.steps * self.env.envs  # samples of a member
        margin = AHEAD * algorithm.steps * algorithm.adapter.groups
        data, capacity = algorithm.replay.data, algorithm.replay.capacity
        if capacity < 2 * margin:
            raise ConfigError(
                f"agent.buffer_size must be at least {2 * margin * algorithm.adapter.accounts} in an async pipeline, "
                f"got {config.buffer_size}"
            )
        try:
            for x in data.values():
                _shared(x)
        except RuntimeError as error:
            raise ConfigError(
                f"agent.buffer_size of {config.buffer_size:,} transitions does not fit into shared memory (/dev/shm): "
                f"{error}; lower it or give the container more (docker run --shm-size)"
            ) from None
        self._versions = _shared(torch.zeros(capacity, dtype=torch.int64))
        self.algorithm = algorithm if make_here is None else _with_room_for_a_batch(config, make_here(), seed)
        self.algorithm.replay = SharedReplay(data, margin, self.algorithm.device)
        self._counts = _shared(torch.zeros(PLACES, dtype=torch.int64))
        # On the CPU: what is copied into it has been computed when the copy is there.
        self._weights = _shared(self._own().cpu().clone())
        context = mp.get_context("spawn")
        self._lock, (self._pipe, theirs) = context.Lock(), context.Pipe(duplex=False)
        self._terms = (this_process(), make_env, config, seed, data, self._versions, margin, self._weights)
        self._process = context.Process(
            target=_collect, args=(*self._terms, self._counts, self._lock, theirs), daemon=False
        )
        self._theirs, self._seconds, self._stale, self._most, self._fresh = theirs, 0.0, 0.0, 0, 0

    def __enter__(self) -> Pipeline:
        # What is started leaves Ctrl-C and SIGTERM to this process from its first line on.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._counts[STOP] = 1
        self._process.join(END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()

    def learn(self, samples: int, *, after: Callable[[Pipeline, list[Any]], bool | None] = lambda *_: None) -> Figures:
        """Until so many samples of a member are collected and learned from.

        after(pipeline, finished episodes) is called now and then; returning False stops. Raises what went wrong there.
        """
        config, algorithm, counts = self.config, self.algorithm, self._counts
        per_sample = config.gradient_steps / self.round
        falls, total = config.learning_rate_schedule == "linear", max(samples - config.learning_starts, 1) * per_sample
        began = last = time.perf_counter()
        while True:
            seen = min(int(counts[SEEN]), samples)
            learned_from = seen - config.learning_starts
            owed = max(learned_from, 0) * config.gradient_steps // self.round - algorithm.updates
            self._read(int(counts[WRITTEN]))
            if owed > 0:
                algorithm.samples = seen
                factor = max(1 - algorithm.updates / total, 0.0) if falls else 1.0
                algorithm.learn(min(owed, AHEAD * config.gradient_steps), factor)
                self._hand_over()
            elif seen >= samples:
                break
            else:
                time.sleep(WAIT)
            now = time.perf_counter()
            self._seconds = now - began
            if now - last > 0.1:
                last = now
                if after(self, self._heard()) is False:
                    break
        after(self, self._heard())
        return self.figures

    @property
    def figures(self) -> Figures:
        """So far."""
        seen, updates = int(self._counts[SEEN]), self.algorithm.updates
        beyond = max(seen - self.config.learning_starts, 0)
        stale = self._stale / self._fresh if self._fresh else 0.0
        return Figures(
            seen,
            updates,
            self._seconds,
            updates / beyond if beyond else 0.0,
            stale,
            self._most,
            int(self._counts[LOST]),
        )

    def _own(self) -> Tensor:
        return self.algorithm.train_state.parts[self.algorithm.acting_part].parameters.flat

    def _read(self, written: int) -> None:
        """Take note of items that have arrived."""
        replay = self.algorithm.replay
        if written == replay.written:
            return
        places = torch.arange(max(replay.written, written - replay.capacity), written) % replay.capacity
        if self.algorithm.updates:
            behind = self.algorithm.updates - self._versions[places]
            self._stale += float(behind.sum())
            self._fresh += len(places)
            self._most = max(self._most, int(behind.max()))
        replay.written = written

    def _hand_over(self) -> None:
        while not self._lock.acquire(timeout=1.0):  # it may have been killed with the lock in its hand
            self._check_at_work()
        try:
            self._weights.copy_(self._own())
            self._counts[VERSION] = self.algorithm.updates
        finally:
            self._lock.release()
        self._counts[UPDATES] = self.algorithm.updates

    def _heard(self) -> list[Any]:
        """Episodes that were finished over there. Raises RunError when it is no longer at work."""
        episodes: list[Any] = []
        with contextlib.suppress(EOFError):
            while self._pipe.poll():
                kind, what = self._pipe.recv()
                if kind == "failed":
                    raise RunError(f"collecting ended: {what}")
                episodes += what
        self._check_at_work()
        return episodes

    def _check_at_work(self) -> None:
        if not self._process.is_alive() and not self._counts[STOP]:
            raise RunError(
                f"the process that collects ended with code {self._process.exitcode}; see whether it was killed"
            )


def _made(config: OffPolicyConfig, env: VecEnv, seed: int) -> OffPolicy:
    algorithm = make_algorithm(config, env, seed=seed)
    assert isinstance(algorithm, OffPolicy)
    return algorithm


def _with_room_for_a_batch(config: OffPolicyConfig, env: VecEnv, seed: int) -> OffPolicy:
    """For who is given another replay."""
    return _made(dataclasses.replace(config, buffer_size=max(config.batch_size, env.envs)), env, seed)


def _shared(x: Tensor) -> Tensor:
    """The same tensor, in memory that another process can be given."""
    x.share_memory_()  # type: ignore[no-untyped-call]
    return x


def _collect(
    parent: Parent,
    make_env: MakeEnv,
    config: OffPolicyConfig,
    seed: int,
    data: dict[str, Tensor],
    versions: Tensor,
    margin: int,
    weights: Tensor,
    counts: Tensor,
    lock: Any,
    pipe: Any,
) -> None:
    """What the other process does, until it is told to stop."""
    die_with_parent(parent)
    torch.set_num_threads(1)
    env = make_env()
    try:
        algorithm = _with_room_for_a_batch(config, env, seed)
        algorithm.replay = SharedReplay(data, margin, algorithm.device)
        _work(algorithm, Worker(env, seed), versions, weights, counts, lock, pipe)
    except (FinrlPodError, ValueError, RuntimeError) as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
    finally:
        if isinstance(env, PooledVecEnv):
            env.close()


def _work(
    algorithm: OffPolicy, worker: Worker, versions: Tensor, weights: Tensor, counts: Tensor, lock: Any, pipe: Any
) -> None:
    config, replay = algorithm.config, algorithm.replay
    round_ = algorithm.steps * worker.env.envs
    ahead, per_sample = AHEAD * round_, config.gradient_steps / round_
    pool = worker.env if isinstance(worker.env, PooledVecEnv) else None
    own = algorithm.train_state.parts[algorithm.acting_part].parameters.flat
    version, told = 0, time.monotonic()
    while not counts[STOP]:
        if algorithm.samples > config.learning_starts + int(counts[UPDATES]) / per_sample + ahead:
            time.sleep(WAIT)
            continue
        if int(counts[VERSION]) != version:
            with lock:
                own.copy_(weights)
                version = int(counts[VERSION])
        start = replay.written
        algorithm.collect(worker)
        if algorithm.device.type == "cuda":
            torch.cuda.synchronize(algorithm.device)  # the items are there before they are counted
        versions[torch.arange(start, replay.written) % replay.capacity] = version
        counts[WRITTEN], counts[SEEN] = replay.written, algorithm.samples
        if pool is None:
            continue
        counts[LOST] = pool.worker_restarts
        if time.monotonic() - told > 0.05:
            told = time.monotonic()
            if episodes := list(_plain(pool.episodes())):
                pipe.send(("episodes", episodes))


def _plain(episodes: Iterable[Any]) -> Iterable[tuple[Any, ...]]:
    return (tuple(episode) for episode in episodes)
