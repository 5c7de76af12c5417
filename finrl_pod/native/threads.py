"""CPU threads of torch and the kernels: they share one OpenMP runtime.

Forked processes have one: the OpenMP runtime of GCC waits forever for the threads of the parent; no child has them.
`gymnasium.vector.AsyncVectorEnv`, `multiprocessing` and process pools fork by default on Linux with Python before 3.14.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_forks: list[bool] = []


def use_threads(count: int) -> None:
    """Use this many threads in this process; one in a forked process, whatever the count."""
    torch.set_num_threads(1 if _forks else count)


@contextmanager
def restored_threads() -> Iterator[None]:
    """Use as many threads after the context as before it, whatever is set within."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        use_threads(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread within the context, around loops of operations that are too small to share.

    On a busy machine each such operation waits for all threads and takes 9 to 23 times as long.
    """
    with restored_threads():
        torch.set_num_threads(1)
        yield


def _use_one_after_fork() -> None:
    _forks.append(True)
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_use_one_after_fork)
