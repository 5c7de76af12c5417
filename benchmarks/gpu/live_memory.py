"""Peak of live bytes of a piece of work: every storage counts from the operation that returns it until it is freed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.gpu.call_stack import innermost_frame
from benchmarks.gpu.launches import skip
from finrl_pod.native.kernel_launch import planned_launches


class PeakMemory(NamedTuple):
    """The most live bytes at a time, in all and by the function that allocated them, most first."""

    total: int
    by_function: Mapping[str, int]


def peak_memory(work: Callable[[], object]) -> PeakMemory:
    """Count the live bytes while `work` runs. Kernels of Triton are not run; what they write to counts."""
    counter = _LiveBytes()
    with planned_launches(skip), counter:
        work()
    return counter.peak()


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """changes: bytes that became live or were freed, with the function that allocated them, in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.changes: list[tuple[int, str]] = []
        self._live: dict[int, tuple[int, str]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                self._add(x.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._live and storage.nbytes():
            self._live[key] = (storage.nbytes(), _function_name())
            self.changes.append(self._live[key])
            weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        size, function = self._live.pop(key)
        self.changes.append((-size, function))

    def peak(self) -> PeakMemory:
        total = highest = place = 0
        for i, (size, _) in enumerate(self.changes):
            total += size
            if total > highest:
                highest = total
                place = i
        by_function: dict[str, int] = {}
        for size, function in self.changes[: place + 1]:
            by_function[function] = by_function.get(function, 0) + size
        ordered = sorted(by_function.items(), key=lambda entry: -entry[1])
        return PeakMemory(highest, {name: size for name, size in ordered if size})


def _function_name() -> str:
    """Module and function of the project that allocate."""
    frame = innermost_frame(__file__)
    return "other" if frame is None else f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"
