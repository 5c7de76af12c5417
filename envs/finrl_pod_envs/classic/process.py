"""What a worker process does: steps its lanes when told, and ends when whoever started it is gone.

It is told by short messages and reads and writes shared memory. It imports numpy and Gymnasium, not torch, and not the
program that started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

from finrl_pod.errors import FinrlPodError
from finrl_pod_envs.classic.block import Block
from finrl_pod_envs.classic.lane import Lane
from finrl_pod_envs.classic.plan import Plan
from finrl_pod_envs.classic.spaces import Shapes

STEP, DONE = b"s", b""
REFUSED, RAISED = "refused", "raised"  # a rule was broken: the run ends; the environment failed: the worker is replaced
PR_SET_PDEATHSIG = 1  # of prctl.h
_CODE = (
    "import json, sys; order = json.loads(sys.argv[1]); sys.path[:] = order['path']; "
    "from finrl_pod_envs.classic.process import work; work(order)"
)


def start(plan: Plan, places: Sequence[int], pipe: int, memory: int) -> subprocess.Popen[bytes]:
    """A process that steps the lanes `places` of a plan. pipe, memory: file descriptors that it inherits.

    In a session of its own: Ctrl-C in a terminal reaches the parent alone, which says what happens.
    """
    order = {
        "path": sys.path,
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
    """Until the pipe is closed: STEP, or {"begin": [[place, episode, actions], ...]}. Answers DONE, or what failed."""
    _end_with_parent()
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
            pipe.send_bytes(DONE)
            while True:
                _answer(pipe.recv_bytes(), own)
                pipe.send_bytes(DONE)
        except FinrlPodError as error:
            _tell(pipe, REFUSED, str(error))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:  # noqa: BLE001  whatever an environment raises is told to the parent
            where = traceback.extract_tb(error.__traceback__)[-1]
            _tell(pipe, RAISED, f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})")


def _end_with_parent() -> None:
    """A worker that hangs in its environment does not see that the pipe is closed: the system ends it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _answer(message: bytes, lanes: dict[int, Lane]) -> None:
    if message == STEP:
        for lane in lanes.values():
            lane.step()
        return
    for place, episode, actions in json.loads(message)["begin"]:
        lanes[place].repeat(episode, actions)


def _tell(pipe: Connection, kind: str, text: str) -> None:
    pipe.send_bytes(json.dumps({kind: text}).encode())
