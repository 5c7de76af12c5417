"""Launches of Triton kernels: whether they are used, planned without a device, or replaced by torch.

Triton comes with the CUDA builds of torch and is imported on first use only. With TRITON_INTERPRET=1 in the
environment, it runs kernels on CPU tensors: so are they tested without a device. The torch version of each kernel
stands beside it and defines the result.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch

from finrl_pod.errors import InputError
from finrl_pod.types import Tensor

INTERPRET = "TRITON_INTERPRET"
# Of x, y and z; CUDA C++ Programming Guide, table of technical specifications.
GRID_LIMITS = (2**31 - 1, 65_535, 65_535)
Constant = bool | int | float | str  # of a Triton kernel, known at compile time
Parameters = ParamSpec("Parameters")
ResultT = TypeVar("ResultT")
_log = logging.getLogger(__name__)


class Launch(NamedTuple):
    """A Triton kernel on a grid. args: tensors (None where absent) and numbers; constants: compile-time constants."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: dict[str, Constant]

    @property
    def name(self) -> str:
        return str(self.kernel.__name__)


Planner = Callable[[Launch], None]
_planners: list[Planner] = []


def use_triton(x: Tensor) -> bool:
    """Whether Triton kernels can be used on tensors like x: on a CUDA device, interpreted on the CPU, or planned."""
    fits = x.device.type == "cuda" or (x.device.type == "cpu" and (is_interpreted() or bool(_planners)))
    return fits and not _is_without_triton and is_triton_installed() and not torch.compiler.is_compiling()


def is_interpreted() -> bool:
    """True if kernels run in the Triton interpreter; the import of Triton decides it."""
    return os.environ.get(INTERPRET) == "1"


@functools.cache
def is_triton_installed() -> bool:
    """Whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Constant) -> None:
    """Launch a Triton kernel on a grid. args: tensors (None where absent), numbers; constants: compile-time constants.

    Raises InputError for a grid that is larger than CUDA allows, KernelError for a kernel that cannot be compiled.
    """
    request = Launch(kernel, grid, args, constants)
    if any(size > limit for size, limit in zip(grid, GRID_LIMITS, strict=False)):
        raise InputError(
            f"a GPU starts at most {' x '.join(map(str, GRID_LIMITS))} programs, but {request.name} needs "
            f"{' x '.join(map(str, grid))}; use fewer pods or accounts, or a shorter horizon"
        )
    if _planners:
        _planners[-1](request)
        return
    if request.name in _refused_kernels:
        raise KernelError(_refused_kernels[request.name])
    try:
        kernel[grid](*args, **constants)
    except Exception as error:
        if not _is_refusal(error):
            raise
        reason = f"the GPU kernel {request.name} cannot be compiled: {first_line(error)}"
        _refused_kernels[request.name] = reason
        _log.warning("%s; torch computes it instead, more slowly", reason)
        raise KernelError(reason) from error


@contextmanager
def planned_launches(planner: Planner) -> Iterator[None]:
    """Call `planner` with every launch inside instead of running it; the results of a kernel stay as allocated."""
    _planners.append(planner)
    try:
        yield
    finally:
        _planners.pop()


class KernelError(Exception):
    """A Triton kernel that cannot be compiled, or needs more registers or shared memory than the device has."""


_refused_kernels: dict[str, str] = {}  # name -> reason; a warning was logged for each
_is_without_triton: list[bool] = []


def with_fallback(operation: Callable[Parameters, ResultT]) -> Callable[Parameters, ResultT]:
    """An operation of one kernel; torch computes it if the kernel cannot be compiled."""

    @functools.wraps(operation)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> ResultT:
        try:
            return operation(*args, **kwargs)
        except KernelError:
            _is_without_triton.append(True)
            try:
                return operation(*args, **kwargs)
            finally:
                _is_without_triton.pop()

    return run


def _is_refusal(error: Exception) -> bool:
    """Whether Triton refused a kernel. Errors of its interpreter are bugs, and CUDA reports the state of the device."""
    from triton.errors import TritonError  # type: ignore[import-untyped]
    from triton.runtime.errors import InterpreterError  # type: ignore[import-untyped]

    if isinstance(error, RuntimeError):
        return "PassManager::run failed" in str(error)
    return isinstance(error, TritonError) and not isinstance(error, InterpreterError)


def first_line(error: Exception) -> str:
    """The first line of an error that has text, or its type; errors of Triton begin with the source of the kernel."""
    text = getattr(error, "error_message", None) or str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


def block_size(n: int) -> int:
    """The smallest power of two that is at least n: blocks of Triton have such sizes."""
    return 1 << max(n - 1, 0).bit_length()
