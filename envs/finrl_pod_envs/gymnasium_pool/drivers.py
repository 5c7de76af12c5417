"""Drivers that step the lanes of a pool: in this process, or in worker processes that are replaced when they fail.

A driver reads actions from its block and writes outcomes there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finrl_pod.errors import ConfigError, FinrlPodError, RunError
from finrl_pod.user_files import unpinned
from finrl_pod_envs.gymnasium_pool.lanes import Block, LanePlan, block_size, describe_failure
from finrl_pod_envs.gymnasium_pool.parallel_lanes import make_lane
from finrl_pod_envs.gymnasium_pool.worker import BUSY, DONE, RAISED, REFUSED, STEP, Channel, start_worker

START_SECONDS = 120.0  # to start Python, Gymnasium and a physics engine on a busy machine
MAX_STEP_SECONDS = 86_400.0
STOP_SECONDS = 2.0  # for a worker to exit before it is killed
MAX_FAILURES = 3  # of one worker without a step in between, or with equal exceptions of the environment
MEMORY_FOLDER = Path("/dev/shm")
_STILL_BUSY = "busy"
_log = logging.getLogger(__name__)

Actions = Sequence[NDArray[np.float32]]


class LocalDriver:
    """Steps the lanes in this process, one after the other: fastest for cheap environments.

    Raises RunError for exceptions of the environment.
    """

    worker_restarts = 0
    pids: Sequence[int] = ()

    def __init__(self, plan: LanePlan) -> None:
        self.block = Block(len(plan.streams), plan.shapes)
        self._name = unpinned(plan.name)
        self._lanes = [make_lane(plan, self.block, i) for i in range(len(plan.streams))]

    def begin(self, episodes: Mapping[int, tuple[int, Actions]]) -> None:
        """Start episodes by lane: its number and the actions already taken in it."""
        with self._named_errors():
            for lane, (episode, actions) in episodes.items():
                self._lanes[lane].repeat(episode, actions)

    def step(self) -> list[int]:
        """Step every lane once; returns the lanes whose step was lost: none."""
        with self._named_errors():
            for lane in self._lanes:
                lane.step()
        return []

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except FinrlPodError:
            raise
        except Exception as error:
            raise RunError(f"{self._name} failed: {describe_failure(error)}") from error


def check_pool(lanes: int, workers: int, seconds: float) -> None:
    """Raises ConfigError for an invalid number of workers, 0 for none, or timeout."""
    if workers < 0:
        raise ConfigError(f"--workers must be 0 or more, got {workers}")
    if workers and lanes % workers:
        raise ConfigError(f"--workers must divide the {lanes} environments, got {workers}; take a divisor")
    if not 0 < seconds <= MAX_STEP_SECONDS:
        raise ConfigError(f"--worker-timeout must be more than 0 and at most {MAX_STEP_SECONDS:g} s, got {seconds:g}")


@dataclass
class _Worker:
    lanes: range
    process: subprocess.Popen[bytes]
    pipe: Channel
    failures: int = 0  # since its last step


class PoolDriver:
    """Steps L lanes in W worker processes, L / W each.

    A worker that fails or hangs is replaced with a warning, and its lanes start new episodes. worker_restarts: workers
    replaced so far. An exception that the environment raises a third time raises RunError.
    """

    def __init__(self, plan: LanePlan, workers: int, seconds: float) -> None:
        """seconds: timeout of one step. See `check_pool` for valid arguments."""
        lanes = len(plan.streams)
        self._plan = plan
        self._seconds = seconds
        self.worker_restarts = 0
        self._exceptions: Counter[str] = Counter()
        # An unnamed file whose descriptor the workers inherit: it vanishes when they exit, even after a kill.
        self._file = tempfile.TemporaryFile(dir=MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None)  # noqa: SIM115  closed by `close`
        self._file.truncate(block_size(lanes, plan.shapes))
        self.block = Block(lanes, plan.shapes, mmap.mmap(self._file.fileno(), 0))
        lane_episodes = lanes // workers
        self._workers: list[_Worker] = []
        try:
            for i in range(workers):
                self._workers.append(self._start(range(i * lane_episodes, (i + 1) * lane_episodes)))
            self._wait_for(self._workers, START_SECONDS, starting=True)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> Sequence[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def begin(self, episodes: Mapping[int, tuple[int, Actions]]) -> None:
        """Start episodes by lane: its number and the actions already taken in it."""
        workers = [worker for worker in self._workers if any(lane in episodes for lane in worker.lanes)]
        for worker in workers:
            lane_episodes = [
                [lane, episode, [[float(x) for x in action] for action in actions]]
                for lane in worker.lanes
                if lane in episodes
                for episode, actions in [episodes[lane]]
            ]
            self._send(worker, json.dumps({"begin": lane_episodes}).encode())
        lost_lanes = self._wait_for(workers, START_SECONDS)
        if lost_lanes:
            # Lanes that have not started an episode cannot be stepped: start their next one.
            self.begin({lane: (episodes[lane][0] + 1, []) for lane in lost_lanes if lane in episodes})

    def step(self) -> list[int]:
        """Step every lane once; returns the lanes whose step was lost; they need `begin`."""
        for worker in self._workers:
            self._send(worker, STEP)
        lost_lanes = self._wait_for(list(self._workers), self._seconds)
        for worker in self._workers:
            if worker.lanes.start not in lost_lanes:
                worker.failures = 0
        return lost_lanes

    def close(self) -> None:
        """Stop every worker by closing its pipe; kill it if it does not exit."""
        for worker in self._workers:
            worker.pipe.close()
        deadline = time.monotonic() + STOP_SECONDS
        for worker in self._workers:
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self._workers = []
        self._file.close()

    # ------------------------------------------------------------------ one worker

    def _start(self, lanes: range) -> _Worker:
        parent_socket, worker_socket = socket.socketpair()
        with worker_socket:
            process = start_worker(self._plan, lanes, worker_socket.fileno(), self._file.fileno())
        return _Worker(lanes, process, Channel(parent_socket.detach()))

    def _send(self, worker: _Worker, message: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # detected when its response is read
            worker.pipe.send(message)

    def _wait_for(self, workers: Iterable[_Worker], seconds: float, *, starting: bool = False) -> list[int]:
        """Wait for responses; replace workers that fail or time out and return their lanes.

        The worker that was asked last is waited for first: when it has answered, most others have, too. To wake up for
        each of many workers would take time from those that still run.
        """
        deadline = time.monotonic() + seconds
        lost_lanes: list[int] = []
        for worker in reversed(list(workers)):
            reason: str | None = _STILL_BUSY
            while reason == _STILL_BUSY:
                if not worker.pipe.has_message(max(0.0, deadline - time.monotonic())):
                    reason = f"did not respond for {seconds:g} s"
                    break
                reason = self._read(worker)
                if reason == _STILL_BUSY:
                    deadline = time.monotonic() + seconds
            if reason is not None:
                lost_lanes += self._replace(worker, reason, starting=starting)
        return lost_lanes

    def _read(self, worker: _Worker) -> str | None:
        """None when done, _STILL_BUSY, or why the worker failed.

        Raises ConfigError for an invalid environment, RunError for the third of equal exceptions.
        """
        try:
            answer = worker.pipe.receive()
        except (EOFError, ConnectionResetError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(STOP_SECONDS)
            code = worker.process.returncode
            return f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        if answer in (DONE, BUSY):
            return None if answer == DONE else _STILL_BUSY
        error = json.loads(answer)
        if REFUSED in error:
            raise ConfigError(error[REFUSED])
        self._exceptions[error[RAISED]] += 1
        if self._exceptions[error[RAISED]] == MAX_FAILURES:
            raise RunError(f"{unpinned(self._plan.name)} failed {MAX_FAILURES} times: {error[RAISED]}")
        return f"failed in its environment: {error[RAISED]}"

    def _replace(self, worker: _Worker, reason: str, *, starting: bool) -> list[int]:
        """Replace a worker by a new process; returns its lanes; they have no episode yet."""
        index = self._workers.index(worker)
        pid = worker.process.pid
        worker.pipe.close()
        worker.process.kill()
        worker.process.wait()
        failures = worker.failures + 1
        if starting or failures >= MAX_FAILURES:
            self._workers.remove(worker)
            raise RunError(
                f"worker {index} of {unpinned(self._plan.name)} {reason}"
                + ("" if starting else f", {failures} times in a row")
                + "; check that the environment works without --workers"
            )
        self.worker_restarts += 1
        _log.warning(
            "worker %d (process %s) %s; it is replaced, and its environments start new episodes", index, pid, reason
        )
        replacement = self._start(worker.lanes)
        replacement.failures = failures
        self._workers[index] = replacement
        self._wait_for([replacement], START_SECONDS, starting=True)
        return list(worker.lanes)
