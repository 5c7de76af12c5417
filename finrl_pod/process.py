"""Child processes that live and end with whoever started them. Needs the standard library alone."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from typing import TypedDict

STOPS = (signal.SIGINT, signal.SIGTERM)  # the parent hears them too, and says what happens
LOOK_SECONDS = 1.0
PR_SET_PDEATHSIG = 1  # of prctl.h


class Parent(TypedDict):
    """Who starts a child: a process, and whether it does so in its main thread."""

    pid: int
    main_thread: bool


def this_one() -> Parent:
    """Who calls; to be handed to the child."""
    return {"pid": os.getpid(), "main_thread": threading.current_thread() is threading.main_thread()}


def belong_to(parent: Parent) -> None:
    """In a child: leave Ctrl-C and SIGTERM to the parent, and end when the parent has, whatever is being done then.

    Linux ends a child with the thread that started it. Threads end before their process does, so where it was not the
    main one, and on other systems, a thread of the child looks whether the parent is still there.
    """
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    by_system = sys.platform == "linux" and parent["main_thread"]
    if by_system:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent["pid"]:  # it ended before that was asked for
        os._exit(1)
    if not by_system:
        threading.Thread(target=_watch, args=(parent["pid"],), daemon=True).start()


def _watch(pid: int) -> None:
    while os.getppid() == pid:
        time.sleep(LOOK_SECONDS)
    os._exit(1)
