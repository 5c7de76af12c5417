"""What a worker process does: steps its lanes when told, and ends when whoever started it is gone.

It is told by short messages and reads and writes shared memory. It imports numpy and Gymnasium, not torch, and not the
program that started it.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

from finrl_pod.errors import FinrlPodError
from finrl_pod.process import die_with_parent, this_process
from finrl_pod_envs.gymnasium_pool.block import Block
from finrl_pod_envs.gymnasium_pool.lane import Lane, Plan, failure
from finrl_pod_envs.gymnasium_pool.spaces import Shapes

STEP, DONE, BUSY = b"s", b"", b"b"  # BUSY: it will answer, and is at work until then
REFUSED, RAISED = "refused", "raised"  # a rule was broken: the run ends; the environment failed: the worker is replaced
BUSY_SECONDS = 1.0  # between two words of it
_CODE = (
    "import json, sys; order = json.loads(sys.argv[1]); sys.path[:] = order['path']; "
    "from finrl_pod_envs.gymnasium_pool.process import work; work(order)"
)


def start(plan: Plan, places: Sequence[int], pipe: int, memory: int) -> subprocess.Popen[bytes]:
    """A process that steps the lanes `places` of a plan. pipe, memory: file descriptors that it inherits.

    In a session of its own: Ctrl-C in a terminal reaches the parent alone, which says what happens.
    """
    order = {
        "path": sys.path,
        "parent": this_process(),
        "pipe": pipe,
        "memory": memory,
        "lanes": len(plan.streams),
        "places": list(places),
        "streams": [plan.streams[place] for place in places],
        "name": plan.name,
        "shapes": asdict(plan.shapes),
    }
    return subprocess.Popen(
        [sys.executable, "-c", _CODE, json.dumps(order)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # standard output belongs to the parent's result
        pass_fds=(pipe, memory),
        start_new_session=True,
    )


def work(order: dict[str, Any]) -> None:
    """Until the pipe is closed: STEP, or {"begin": [[place, episode, actions], ...]}.

    Answers DONE, or what failed; while it repeats episodes, BUSY now and then.
    """
    die_with_parent(order["parent"])
    name = order["name"]
    known: dict[str, Any] = {k: tuple(x) if isinstance(x, list) else x for k, x in order["shapes"].items()}
    shapes = Shapes(**known)
    memory = mmap.mmap(order["memory"], 0)
    pipe = Connection(order["pipe"])
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            block = Block(order["lanes"], shapes.row, shapes.columns, memory)
            own = {
                place: Lane(name, shapes, stream, block, place)
                for place, stream in zip(order["places"], order["streams"], strict=True)
            }
            busy = _Busy(pipe)
            pipe.send_bytes(DONE)
            while True:
                _answer(pipe.recv_bytes(), own, busy)
                pipe.send_bytes(DONE)
        except FinrlPodError as error:
            _tell(pipe, REFUSED, str(error))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:  # noqa: BLE001  whatever an environment raises is told to the parent
            _tell(pipe, RAISED, failure(error))


class _Busy:
    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._told = pipe, time.monotonic()

    def __call__(self) -> None:
        """To be called often; it says something when the last word was a while ago."""
        if (now := time.monotonic()) - self._told > BUSY_SECONDS:
            self._told = now
            self._pipe.send_bytes(BUSY)


def _answer(message: bytes, lanes: dict[int, Lane], busy: Callable[[], None]) -> None:
    if message == STEP:
        for lane in lanes.values():
            lane.step()
        return
    for place, episode, actions in json.loads(message)["begin"]:
        lanes[place].repeat(episode, actions, busy)


def _tell(pipe: Connection, kind: str, text: str) -> None:
    pipe.send_bytes(json.dumps({kind: text}).encode())
