"""Which version of an operation runs where: C++ on CPUs, Triton on CUDA devices, torch everywhere else; CPU threads.

Triton comes with the CUDA builds of torch and is imported on first use only. With TRITON_INTERPRET=1 in the
environment, it runs kernels on CPU tensors: so are they tested without a device. The torch version of each kernel
stands beside it and defines the result.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from finrl_pod.errors import InputError
from finrl_pod.types import Tensor

INTERPRET = "TRITON_INTERPRET"
# Of x, y and z; CUDA C++ Programming Guide, table of technical specifications.
GRID_LIMITS = (2**31 - 1, 65_535, 65_535)
Constant = bool | int | float | str  # of a Triton kernel, known at compile time
Observer = Callable[[str, tuple[Any, ...], dict[str, Constant]], AbstractContextManager[None]]
_observers: list[Observer] = []
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


def use_triton(x: Tensor) -> bool:
    """Whether Triton kernels can be used on tensors like x: on a CUDA device, or interpreted on the CPU."""
    fits = x.device.type == "cuda" or (x.device.type == "cpu" and is_interpreted())
    return fits and is_triton_installed() and not torch.compiler.is_compiling()


def is_interpreted() -> bool:
    """True if kernels run in the Triton interpreter; the import of Triton decides it."""
    return os.environ.get(INTERPRET) == "1"


@functools.cache
def is_triton_installed() -> bool:
    """Whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Constant) -> None:
    """Launch a Triton kernel on a grid. args: tensors (None where absent), numbers; constants: compile-time constants.

    Raises InputError for a grid that is larger than CUDA allows.
    """
    if any(size > limit for size, limit in zip(grid, GRID_LIMITS, strict=False)):
        raise InputError(
            f"a GPU starts at most {' x '.join(map(str, GRID_LIMITS))} programs, but {kernel.__name__} needs "
            f"{' x '.join(map(str, grid))}; use fewer pods or accounts, or a shorter horizon"
        )
    with _observers[-1](kernel.__name__, args, constants) if _observers else nullcontext():
        kernel[grid](*args, **constants)


@contextmanager
def observed_launches(observer: Observer) -> Iterator[None]:
    """Call `observer(name, args, constants)` at every launch inside; the launch runs in the context it returns."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.pop()


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


def block_size(n: int) -> int:
    """The smallest power of two that is at least n: blocks of Triton have such sizes."""
    return 1 << max(n - 1, 0).bit_length()


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
