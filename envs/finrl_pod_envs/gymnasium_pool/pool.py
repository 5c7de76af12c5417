"""A pool of worker processes that step lanes through shared memory, and replaces those that are lost."""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from finrl_pod.errors import ConfigError, RunError
from finrl_pod_envs.gymnasium_pool.block import Block, size_of
from finrl_pod_envs.gymnasium_pool.drivers import Actions
from finrl_pod_envs.gymnasium_pool.lane import Plan
from finrl_pod_envs.gymnasium_pool.process import BUSY, DONE, RAISED, REFUSED, STEP, start

START_SECONDS = 120.0  # Python, Gymnasium and a physics engine on a busy machine
LONGEST_SECONDS = 86_400.0  # of a step
END_SECONDS = 2.0  # for a worker that was told to go
AT_WORK = "is at work"
MOST_IN_A_ROW = 3  # losses of one worker without a step between them
MEMORY_FOLDER = Path("/dev/shm")
_log = logging.getLogger(__name__)


def check(lanes: int, workers: int, seconds: float) -> None:
    """Raises ConfigError for a pool that cannot be."""
    if workers < 1:
        raise ConfigError(f"--workers must be 1 or more, got {workers}")
    if lanes % workers:
        raise ConfigError(f"--workers must divide the {lanes} environments, got {workers}; take a divisor")
    if not 0 < seconds <= LONGEST_SECONDS:
        raise ConfigError(f"--worker-timeout must be more than 0 and at most {LONGEST_SECONDS:g} s, got {seconds:g}")


@dataclass
class _Worker:
    places: range
    process: subprocess.Popen[bytes]
    pipe: Connection
    failures: int = 0  # since its last step


class PoolDriver:
    """W workers with L / W lanes each. What a lost worker was stepping begins new episodes, and a warning says so."""

    def __init__(self, plan: Plan, workers: int, seconds: float) -> None:
        """seconds: a worker that takes longer for one step hangs. See `check` for numbers that fit."""
        lanes = len(plan.streams)
        self._plan, self._seconds, self.worker_restarts = plan, seconds, 0
        # A file without a name that is handed to the workers: however they all end, nothing is left behind.
        self._file = tempfile.TemporaryFile(dir=MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None)  # noqa: SIM115  closed by `close`
        self._file.truncate(size_of(lanes, plan.shapes.row, plan.shapes.columns))
        self.block = Block(lanes, plan.shapes.row, plan.shapes.columns, mmap.mmap(self._file.fileno(), 0))
        each = lanes // workers
        self._workers: list[_Worker] = []
        try:
            for i in range(workers):
                self._workers.append(self._start(range(i * each, (i + 1) * each)))
            self._expect(self._workers, START_SECONDS, starting=True)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, in order."""
        return [worker.process.pid for worker in self._workers]

    def begin(self, episodes: Mapping[int, tuple[int, Actions]]) -> None:
        told = [worker for worker in self._workers if any(place in episodes for place in worker.places)]
        for worker in told:
            each = [
                [place, episode, [[float(x) for x in action] for action in actions]]
                for place in worker.places
                if place in episodes
                for episode, actions in [episodes[place]]
            ]
            self._send(worker, json.dumps({"begin": each}).encode())
        lost = self._expect(told, START_SECONDS)
        if lost:
            # What has not begun cannot be stepped: the next episode of each of its lanes.
            self.begin({place: (episodes[place][0] + 1, []) for place in lost if place in episodes})

    def step(self) -> list[int]:
        for worker in self._workers:
            self._send(worker, STEP)
        lost = self._expect(list(self._workers), self._seconds)
        for worker in self._workers:
            if worker.places.start not in lost:
                worker.failures = 0
        return lost

    def close(self) -> None:
        """Ends every worker: told by the closed pipe, and killed if it does not go."""
        for worker in self._workers:
            worker.pipe.close()
        until = time.monotonic() + END_SECONDS
        for worker in self._workers:
            try:
                worker.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self._workers = []
        self._file.close()

    # ------------------------------------------------------------------ one worker

    def _start(self, places: range) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            process = start(self._plan, places, theirs.fileno(), self._file.fileno())
        return _Worker(places, process, Connection(ours.detach()))

    def _send(self, worker: _Worker, message: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its silence will be noticed
            worker.pipe.send_bytes(message)

    def _expect(self, workers: Iterable[_Worker], seconds: float, *, starting: bool = False) -> list[int]:
        """Wait for an answer of each; replace who is silent for so long. Returns the places of the replaced."""
        waiting = {worker.pipe: worker for worker in workers}
        until = time.monotonic() + seconds
        lost: list[int] = []
        while waiting:
            ready = wait(list(waiting), max(0.0, until - time.monotonic()))
            if not ready:
                for worker in waiting.values():
                    lost += self._replace(worker, f"gave no answer for {seconds:g} s", starting=starting)
                break
            for pipe in ready:
                assert isinstance(pipe, Connection)
                worker = waiting[pipe]
                reason = self._read(worker)
                if reason == AT_WORK:
                    until = time.monotonic() + seconds
                    continue
                del waiting[pipe]
                if reason is not None:
                    lost += self._replace(worker, reason, starting=starting)
        return lost

    def _read(self, worker: _Worker) -> str | None:
        """None when all is done, AT_WORK, or why the worker is lost. Raises ConfigError for a broken rule."""
        try:
            answer = worker.pipe.recv_bytes()
        except (EOFError, ConnectionResetError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(END_SECONDS)
            code = worker.process.returncode
            return f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        if answer in (DONE, BUSY):
            return None if answer == DONE else AT_WORK
        said = json.loads(answer)
        if REFUSED in said:
            raise ConfigError(said[REFUSED])
        return f"failed in its environment: {said[RAISED]}"

    def _replace(self, worker: _Worker, reason: str, *, starting: bool) -> list[int]:
        """A fresh process in its place; returns its lanes, which have begun nothing."""
        index, pid = self._workers.index(worker), worker.process.pid
        worker.pipe.close()
        worker.process.kill()
        worker.process.wait()
        failures = worker.failures + 1
        if starting or failures >= MOST_IN_A_ROW:
            self._workers.remove(worker)
            raise RunError(
                f"worker {index} of {self._plan.name} {reason}"
                + ("" if starting else f", {failures} times in a row")
                + "; see whether the environment runs alone"
            )
        self.worker_restarts += 1
        _log.warning(
            "worker %d (process %s) %s; it is replaced, and its environments begin new episodes", index, pid, reason
        )
        fresh = self._start(worker.places)
        fresh.failures = failures
        self._workers[index] = fresh
        self._expect([fresh], START_SECONDS, starting=True)
        return list(worker.places)
