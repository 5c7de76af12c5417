"""A graph for the CPU: records ATen operations with their tensors and repeats them, as a CUDA graph repeats kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from finrl_pod.random import RandomState
from finrl_pod.types import Tensor

HOST_READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal.default")


class RecordedGraph(TorchDispatchMode):  # type: ignore[misc]
    """Keeps every tensor, and with it its address. Raises RuntimeError where the host would wait for a device."""

    def __init__(self, work: Callable[[], None], generators: Sequence[RandomState]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []
        with self:
            work()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(name in str(func) for name in HOST_READS):
            raise RuntimeError(f"{func} waits for the device")
        kwargs = dict(kwargs or {})
        out = func(*args, **kwargs)
        self._operations.append((func, args, kwargs, _tensors(out)))
        return out

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, outputs in self._operations:
            for kept, new in zip(outputs, _tensors(func(*args, **kwargs)), strict=True):
                if kept.data_ptr() != new.data_ptr():  # neither a view nor written in place
                    kept.copy_(new)


def recorded_graph(work: Callable[[], None], generators: Sequence[RandomState]) -> Callable[[], None]:
    """Record work; returns what repeats it."""
    return RecordedGraph(work, generators).replay


def _tensors(out: Any) -> list[Tensor]:
    return [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
