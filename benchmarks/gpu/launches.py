"""Counts what an iteration would cost on a GPU, without one: launches, bytes, and what keeps it from being captured.

A launch is one ATen operation that computes (no views, no allocations) or one Triton kernel. Nothing is fused: what
`torch.compile` might merge counts as it is written. A captured graph replays with the same addresses and numbers, so
two iterations are compared: a tensor that was read from before the iteration and has moved, or a Python number that has
changed, would be wrong in a replay. A host synchronisation makes capture impossible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from finrl_pod.native.device import observed_launches

# Operations whose result the host waits for, or whose shape depends on data.
SYNCS = (
    *("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal.default"),
    *("repeat_interleave.Tensor", "lift_fresh"),  # the second: data of the host, as of `torch.tensor([..])`
)
# Operations that allocate or relabel memory, beside views: no kernel runs.
FREE = ("empty", "new_empty", "_unsafe_view", "detach", "set_", "resize_", "_has_same_storage_numel")


@dataclass
class Recording:
    """What one iteration did.

    launches: names of operations and kernels, in order. numbers: Python numbers of each. reads: addresses of the
    tensors of each that existed before the iteration. moved_bytes: bytes read and written. widest: bytes of the largest
    tensor computed by widest_operation. syncs: operations that wait for the device.
    """

    launches: list[str] = field(default_factory=list)
    numbers: list[tuple[Any, ...]] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    moved_bytes: int = 0
    widest: int = 0
    widest_operation: str = ""
    syncs: list[str] = field(default_factory=list)

    def baked_numbers(self, next_recording: Recording) -> list[str]:
        """Operations whose Python numbers are others in a later iteration, or which it does not have."""
        pairs = zip(self.launches, self.numbers, next_recording.numbers, strict=False)
        operations = [name for name, a, b in pairs if repr(a) != repr(b)]  # as text: NaN is not equal to itself
        return operations + ["other operations"] * (self.launches != next_recording.launches)

    def moved_buffers(self, next_recording: Recording) -> list[str]:
        """Operations that read a tensor from before the iteration which is at another address in a later one."""
        operations = []
        address_pairs = set()
        for name, addresses, next_addresses in zip(self.launches, self.reads, next_recording.reads, strict=False):
            for pair in zip(addresses, next_addresses, strict=False):
                if pair[0] != pair[1] and pair not in address_pairs:
                    address_pairs.add(pair)
                    operations.append(name)
        return operations


def record(work: Callable[[], object]) -> Recording:
    """Run `work` once and record it."""
    recorder = _Recorder()
    with observed_launches(recorder.kernel), recorder:
        work()
    return recorder.recording


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = Recording()
        self._storages: dict[int, torch.UntypedStorage] = {}  # kept, so that no address is used twice

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        out = func(*args, **kwargs)
        name = str(func)
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        outputs = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        if _waits(name, args, inputs, outputs):
            self.recording.syncs.append(name)
        input_addresses = {_address(x) for x in inputs}
        new_tensors = [x for x in outputs if _address(x) not in input_addresses]
        base = name.split(".")[1] if name.startswith("aten.") else name
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if not is_view and not base.startswith(FREE):
            self._note(name, inputs, outputs, [x for x in tree_leaves((args, kwargs)) if isinstance(x, (int, float))])
            for size in (x.untyped_storage().nbytes() for x in new_tensors):
                if size > self.recording.widest:
                    self.recording.widest = size
                    self.recording.widest_operation = name
        for x in new_tensors:
            self._storages[_address(x)] = x.untyped_storage()
        return out

    @contextmanager
    def kernel(self, name: str, args: tuple[Any, ...], constants: dict[str, Any]) -> Iterator[None]:
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        numbers = [x for x in (*args, *constants.values()) if isinstance(x, (int, float))]
        self._note(f"triton.{name}", tensors, [], numbers)
        with _disable_current_modes():
            yield

    def _note(
        self, name: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], numbers: list[Any]
    ) -> None:
        recording = self.recording
        recording.launches.append(name)
        recording.numbers.append(tuple(numbers))
        recording.reads.append(tuple(x.data_ptr() for x in inputs if _address(x) not in self._storages))
        recording.moved_bytes += sum(x.numel() * x.element_size() for x in (*inputs, *outputs))


def _address(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _waits(name: str, args: tuple[Any, ...], inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
    if any(operation in name for operation in SYNCS):
        return True
    by_mask = "aten.index" in name and any(
        isinstance(x, torch.Tensor) and x.dtype == torch.bool
        for arg in args
        if isinstance(arg, (list, tuple))
        for x in arg
    )
    moves = ("_to_copy" in name or "copy_" in name) and len({x.device for x in (*inputs, *outputs)}) > 1
    return by_mask or moves
