"""CPU threads of torch and the kernels, which share one OpenMP runtime.

Forked processes have one: the OpenMP runtime of GCC waits forever for the threads of the parent, which no child has.
`gymnasium.vector.AsyncVectorEnv`, `multiprocessing` and process pools fork by default on Linux with Python before 3.14.
"""

from __future__ import annotations

import os

import torch

_forked: list[bool] = []


def use_threads(count: int) -> None:
    """Use this many threads in this process; one in a forked process, whatever the count."""
    torch.set_num_threads(1 if _forked else count)


def _use_one_after_fork() -> None:
    _forked.append(True)
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_use_one_after_fork)
