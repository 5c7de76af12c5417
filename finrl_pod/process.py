"""Child processes that exit together with their parent. Needs only the standard library."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from typing import TypedDict

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # children ignore these; the parent handles them
POLL_SECONDS = 1.0
PR_SET_PDEATHSIG = 1  # of prctl.h


class Parent(TypedDict):
    """The process that starts a child, and whether it does so in its main thread."""

    pid: int
    main_thread: bool


def this_process() -> Parent:
    """The calling process, to be passed to a child for `die_with_parent`."""
    return {"pid": os.getpid(), "main_thread": threading.current_thread() is threading.main_thread()}


def die_with_parent(parent: Parent) -> None:
    """In a child process: ignore Ctrl-C and SIGTERM, and exit as soon as the parent has exited.

    On Linux the kernel kills the child when the thread that started it ends. Where that was not the main thread, and
    on other systems, a background thread polls for the parent instead.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    by_kernel = sys.platform == "linux" and parent["main_thread"]
    if by_kernel:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent["pid"]:  # the parent exited before prctl was called
        os._exit(1)
    if not by_kernel:
        threading.Thread(target=_exit_without_parent, args=(parent["pid"],), daemon=True).start()


def _exit_without_parent(pid: int) -> None:
    while os.getppid() == pid:
        time.sleep(POLL_SECONDS)
    os._exit(1)
