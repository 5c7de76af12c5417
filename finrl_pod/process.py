"""Child processes that exit together with their parent, and Ctrl-C during imports. Needs only the standard library."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import TypedDict

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # children ignore these; the parent handles them
POLL_SECONDS = 1.0
PR_SET_PDEATHSIG = 1  # of prctl.h
RETRY_SECONDS = 0.05  # until a Ctrl-C that waits for a compiled module is raised again


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


def interrupt(_number: int, frame: FrameType | None) -> None:
    """Handler of SIGINT: raises KeyboardInterrupt, and waits while a compiled module starts."""
    while frame is not None:
        if frame.f_code.co_qualname.startswith("ExtensionFileLoader."):
            signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def keep_interrupts() -> None:
    """Keep Ctrl-C while compiled modules start: modules of Cython swallow exceptions then, KeyboardInterrupt with them.

    Changes nothing where SIGINT has a handler other than Python's own, or where there is no interval timer (Windows).
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler and hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, interrupt)
        signal.signal(signal.SIGINT, interrupt)
