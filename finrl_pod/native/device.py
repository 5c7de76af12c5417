"""Which version of an operation runs where: C++ on CPUs, Triton on CUDA devices, torch everywhere else; CPU threads.

`kernel_launch.py` has the launches of Triton.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_simulations: list[bool] = []


@contextmanager
def as_on_device() -> Iterator[None]:
    """Treat the CPU as a GPU in the programs made and run inside: no C++ kernels, no early stops that wait for data."""
    _simulations.append(True)
    try:
        yield
    finally:
        _simulations.pop()


def on_device(device: torch.device) -> bool:
    """True if the programs for GPUs run on this device."""
    return device.type != "cpu" or bool(_simulations)


@contextmanager
def matmul_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Multiply float32 matrices on a CUDA device in TF32 if precision is "tf32"; a setting of the whole process."""
    if precision != "tf32" or device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


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
