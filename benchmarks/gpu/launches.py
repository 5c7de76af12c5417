"""Counts what an iteration costs on a GPU, without one: launches, bytes, operations, and what a graph cannot repeat.

A launch is one ATen operation that computes (no views, no allocations) or one Triton kernel. Nothing is fused: what
`torch.compile` might merge counts as it is written. A captured graph replays with the same addresses and numbers, so
two iterations are compared: a tensor that was read from before the iteration and has moved, or a Python number that has
changed, would be wrong in a replay. A host synchronisation makes capture impossible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks.gpu.kernel_costs import cost_of
from finrl_pod.native.kernel_launch import Launch, planned_launches

# Operations whose result the host waits for, or whose shape depends on data.
SYNCS = (
    *("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal.default"),
    *("repeat_interleave.Tensor", "lift_fresh"),  # the second: data of the host, as of `torch.tensor([..])`
)
# Operations that allocate or relabel memory, beside views, or ask for its device: no kernel runs.
FREE = ("prim", "empty", "new_empty", "_unsafe_view", "detach", "set_", "resize_", "_has_same_storage_numel")
GATHERS = ("index_select", "index.Tensor", "gather")  # they read as much of their source as they write
OVERWRITES = ("copy_", "fill_", "zero_")  # they do not read what they write to


@dataclass
class Recording:
    """What one iteration did.

    launches: names of operations and kernels, in order. numbers: Python numbers of each. reads: addresses of the
    tensors of each that existed before the iteration. kernels: launches of Triton. moved_bytes: bytes read and written.
    flops: floating-point operations. widest: bytes of the largest tensor computed by widest_operation. syncs:
    operations that wait for the device.
    """

    launches: list[str] = field(default_factory=list)
    numbers: list[tuple[Any, ...]] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    kernels: list[Launch] = field(default_factory=list)
    moved_bytes: int = 0
    flops: int = 0
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
    """Run `work` once and record it. Kernels of Triton are counted and not run."""
    recorder = _Recorder()
    with planned_launches(recorder.plan), recorder:
        work()
    return recorder.recording


def skip(launch: Launch) -> None:
    """A planner that runs nothing. Results of a kernel that may become indices, `.._out`, are set to 0."""
    with _disable_current_modes():
        for name, x in zip(launch.kernel.arg_names, launch.args, strict=False):
            if isinstance(x, torch.Tensor) and not isinstance(x, FakeTensor) and name.endswith("_out"):
                x.zero_()


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
        base = name.removeprefix("aten.")
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if not is_view and not base.startswith(FREE):
            self._note(name, inputs, [x for x in tree_leaves((args, kwargs)) if isinstance(x, (int, float))])
            self.recording.moved_bytes += _moved_bytes(name, inputs, outputs)
            if func._overloadpacket in flop_registry:
                self.recording.flops += flop_registry[func._overloadpacket](*args, **kwargs, out_val=out)
            else:
                self.recording.flops += sum(x.numel() for x in outputs if x.is_floating_point())
            for size in (x.untyped_storage().nbytes() for x in new_tensors):
                if size > self.recording.widest:
                    self.recording.widest = size
                    self.recording.widest_operation = name
        for x in new_tensors:
            self._storages[_address(x)] = x.untyped_storage()
        return out

    def plan(self, launch: Launch) -> None:
        tensors = [x for x in launch.args if isinstance(x, torch.Tensor)]
        numbers = [x for x in (*launch.args, *launch.constants.values()) if isinstance(x, (int, float))]
        self._note(f"triton.{launch.name}", tensors, numbers)
        cost = cost_of(launch)
        self.recording.kernels.append(launch._replace(args=()))  # without its tensors, which would stay alive
        self.recording.moved_bytes += cost.moved_bytes
        self.recording.flops += cost.flops
        skip(launch)

    def _note(self, name: str, inputs: Sequence[torch.Tensor], numbers: list[Any]) -> None:
        recording = self.recording
        recording.launches.append(name)
        recording.numbers.append(tuple(numbers))
        addresses = [(_address(x), x.storage_offset()) for x in inputs]
        recording.reads.append(tuple(hash(pair) for pair in addresses if pair[0] not in self._storages))


def _address(x: torch.Tensor) -> int:
    """Identity of the memory of a tensor; without data, of its storage."""
    storage = x.untyped_storage()
    return storage._cdata if isinstance(x, FakeTensor) else storage.data_ptr()


def _moved_bytes(name: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> int:
    """Bytes that an operation reads and writes."""
    if any(gather in name for gather in GATHERS):
        outside = [x for x in inputs[1:] if not x.is_floating_point()]
        return 2 * _size(outputs) + _size(outside)
    if any(overwrite in name for overwrite in OVERWRITES):
        inputs = inputs[1:]
    return _size([*inputs, *outputs])


def _size(tensors: Sequence[torch.Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


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
