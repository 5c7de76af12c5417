"""Worker process of a pool: steps its lanes on request, and exits with the process that started it.

Requests are short messages; observations and actions pass through shared memory. Imports numpy and Gymnasium only: not
torch, and not the program that started it.

A message is a length, then that many bytes, over a socket. The two messages of a step are empty and cost one system
call on either side. `Connection` of multiprocessing takes several and many Python calls, a cost that counts with dozens
of workers on few cores.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypedDict

from finrl_pod.errors import FinrlPodError
from finrl_pod.process import Parent, die_with_parent, this_process
from finrl_pod_envs.gymnasium_pool.lanes import Block, LanePlan, Shapes, describe_failure
from finrl_pod_envs.gymnasium_pool.parallel_lanes import AnyLane, make_lane

STEP = b""
DONE = b""
BUSY = b"b"  # BUSY: still working, the response follows
REFUSED = "refused"
RAISED = "raised"  # invalid environment: the run ends; exception: the worker is replaced
BUSY_SECONDS = 1.0  # between two BUSY messages
_CODE = (
    "import json, sys; job = json.loads(sys.argv[1]); sys.path[:] = job['path']; "
    "from finrl_pod_envs.gymnasium_pool.worker import run_worker; run_worker(job)"
)
_LENGTH = struct.Struct("I")
_EMPTY = _LENGTH.pack(0)
CHUNK = 65_536  # bytes


class Channel:
    """One end of a socket, by its file descriptor; `close` closes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def send(self, message: bytes) -> None:
        """Send a message. Raises BrokenPipeError or ConnectionResetError if the other end is closed."""
        if not message and os.write(self._descriptor, _EMPTY) == len(_EMPTY):
            return
        data = memoryview(_LENGTH.pack(len(message)) + message)
        while data:
            data = data[os.write(self._descriptor, data) :]

    def receive(self) -> bytes:
        """Wait for a message. Raises EOFError or ConnectionResetError if the other end is closed."""
        head = self._read(_LENGTH.size)
        return b"" if head == _EMPTY else self._read(_LENGTH.unpack(head)[0])

    def has_message(self, seconds: float) -> bool:
        """Wait up to that long for a message, or for the other end to be closed."""
        return bool(self._poll.poll(1000 * seconds))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self, count: int) -> bytes:
        """Exactly `count` bytes."""
        data = os.read(self._descriptor, min(count, CHUNK))
        while len(data) < count:
            chunk = os.read(self._descriptor, min(count - len(data), CHUNK)) if data else b""
            if not chunk:
                raise EOFError
            data += chunk
        return data


class Job(TypedDict):
    """Arguments of a worker as JSON. lanes: numbers of its lanes; streams: seed streams of all lanes."""

    path: list[str]
    parent: Parent
    pipe: int
    memory: int
    lanes: list[int]
    streams: list[int]
    name: str
    arguments: dict[str, Any]
    shapes: dict[str, int | str | list[float]]


def start_worker(plan: LanePlan, lanes: Sequence[int], pipe: int, memory: int) -> subprocess.Popen[bytes]:
    """Start a process that steps some lanes of a plan. pipe, memory: file descriptors that it inherits.

    It runs in a separate session, so that Ctrl-C in a terminal reaches the parent only.
    """
    job: Job = {
        "path": sys.path,
        "parent": this_process(),
        "pipe": pipe,
        "memory": memory,
        "lanes": list(lanes),
        "streams": list(plan.streams),
        "name": plan.name,
        "arguments": dict(plan.arguments),
        "shapes": asdict(plan.shapes),
    }
    return subprocess.Popen(
        [sys.executable, "-c", _CODE, json.dumps(job)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # reserved for the result of the parent
        pass_fds=(pipe, memory),
        start_new_session=True,
    )


def run_worker(job: Job) -> None:
    """Handle requests until the pipe is closed: STEP, or {"begin": [[lane, episode, actions], ...]}.

    Replies with DONE or an error; while repeating episodes, BUSY from time to time.
    """
    die_with_parent(job["parent"])
    with contextlib.suppress(AttributeError, OSError):
        # A worker that is woken up does not interrupt the parent before it has woken up the others. Linux only.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    fields = {name: tuple(x) if isinstance(x, list) else x for name, x in job["shapes"].items()}
    shapes = Shapes(**fields)  # type: ignore[arg-type]
    plan = LanePlan(job["name"], shapes, tuple(job["streams"]), job["arguments"])
    memory = mmap.mmap(job["memory"], 0)
    pipe = Channel(job["pipe"])
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            block = Block(len(plan.streams), shapes, memory)
            lanes = {lane: make_lane(plan, block, lane) for lane in job["lanes"]}
            busy = _BusySignal(pipe)
            pipe.send(DONE)
            while True:
                _handle(pipe.receive(), lanes, busy)
                pipe.send(DONE)
        except FinrlPodError as error:
            _send_error(pipe, REFUSED, str(error))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever an environment raises is reported to the parent
            _send_error(pipe, RAISED, describe_failure(error))


class _BusySignal:
    def __init__(self, pipe: Channel) -> None:
        self._pipe = pipe
        self._last = time.monotonic()

    def __call__(self) -> None:
        """Send BUSY if the last message is older than `BUSY_SECONDS`."""
        if (now := time.monotonic()) - self._last > BUSY_SECONDS:
            self._last = now
            self._pipe.send(BUSY)


def _handle(message: bytes, lanes: dict[int, AnyLane], busy: Callable[[], None]) -> None:
    if message == STEP:
        for lane in lanes.values():
            lane.step()
        return
    for index, episode, actions in json.loads(message)["begin"]:
        lanes[index].repeat(episode, actions, busy)


def _send_error(pipe: Channel, kind: str, text: str) -> None:
    pipe.send(json.dumps({kind: text}).encode())
