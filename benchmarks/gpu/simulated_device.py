"""Simulated torch device: its tensors wrap CPU tensors and, as on a GPU, cannot be mixed with tensors of the CPU.

Without a GPU this checks that a computation stays on its device, takes the branches of a device other than the CPU, and
gives the right results. A log shows where the host waits for the device, copies pageable memory to it, and where a
learner creates state during an iteration. It does not check a GPU's kernels, streams and memory; tests/gpu does. It is
used in a process of its own: see `register_device`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from benchmarks.gpu.call_stack import innermost_frame
from finrl_pod.native import philox

NAME = "simulated"
ATEN = torch.ops.aten
MOVES = {ATEN._to_copy.default, ATEN.copy_.default, ATEN.copy.default}
READS = {ATEN._local_scalar_dense.default}
WAITS = (*("nonzero", "masked_select", "unique", "is_nonzero", "equal.default"), "repeat_interleave.Tensor")
JOINS = {ATEN.cat.default, ATEN.stack.default}
INDEXES = {ATEN.index.Tensor, ATEN.index_put_.default, ATEN.index_put.default, ATEN._index_put_impl_.default}
DRAWS: Mapping[Any, Sequence[str]] = {
    torch: ("rand", "randn", "randint", "randperm"),
    torch.Tensor: ("exponential_", "uniform_", "normal_", "random_", "bernoulli_"),
}


@dataclass
class HostLog:
    """What the host did with the device, in order.

    waits: operations whose result the host reads or whose shape depends on data. pageable_copies: operations that copy
    memory of the host to the device; a graph cannot contain them. late_state: places of a learner with a tensor that
    was created during an iteration.
    """

    waits: list[str] = field(default_factory=list)
    pageable_copies: list[str] = field(default_factory=list)
    late_state: list[str] = field(default_factory=list)


_logs: list[HostLog] = []


@contextlib.contextmanager
def host_log(root: object = None) -> Iterator[HostLog]:
    """Log what the host does inside. root: an object whose state must not grow, such as a learner."""
    log = HostLog()
    paths_before = set(_tensor_paths(root))
    _logs.append(log)
    try:
        yield log
    finally:
        _logs.pop()
    log.late_state += sorted(set(_tensor_paths(root)) - paths_before)


def _tensor_paths(value: object, path: str = "", visited: set[int] | None = None) -> Iterator[str]:
    """Where an object and its attributes, entries and items hold tensors of the device."""
    visited = set() if visited is None else visited
    if isinstance(value, DeviceTensor):
        yield path
        return
    if id(value) in visited or isinstance(value, (type, str, torch.Tensor)):
        return
    visited.add(id(value))
    if isinstance(value, Mapping):
        entries = [(f"{path}[{key!r}]", entry) for key, entry in value.items()]
    elif isinstance(value, (list, tuple)):
        entries = [(f"{path}[{i}]", entry) for i, entry in enumerate(value)]
    elif type(value).__module__.startswith("finrl_pod"):
        entries = [(f"{path}.{name}", entry) for name, entry in vars(value).items()]
    else:
        return
    for entry_path, entry in entries:
        yield from _tensor_paths(entry, entry_path, visited)


class DeviceTensor(torch.Tensor):
    """Tensor on the simulated device; `raw` is the CPU tensor with its values."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> DeviceTensor:
        tensor: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )  # fmt: skip
        tensor.raw = raw
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})


class DeviceGenerator(torch.Generator):
    """CPU generator that reports the device it was created for."""

    _device: torch.device

    def __new__(cls, device: torch.device | str = "cpu") -> DeviceGenerator:
        generator = super().__new__(cls, "cpu")  # type: ignore[call-arg]
        generator._device = torch.device(device)
        return generator

    def __init__(self, *_: Any) -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._device


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})


@functools.cache
def register_device() -> None:
    """Tell torch of the device, before this process computes its first gradient.

    From then on torch takes it for the accelerator of the process and refuses gradients on a GPU.
    """
    _setup_privateuseone_for_python_backend(NAME)


@contextlib.contextmanager
def simulated_device(*, has_numbers_of_cpu: bool = True) -> Iterator[str]:
    """Run operations on the simulated device as described above; yields its name.

    has_numbers_of_cpu: draw as on the CPU, to compare with it; otherwise as on a GPU.
    """
    register_device()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_Mode())  # type: ignore[no-untyped-call]
        patches: list[tuple[Any, str, Any]] = [(torch, "Generator", DeviceGenerator)]
        if has_numbers_of_cpu:
            patches.append((philox, "on_device", lambda _: False))
        for owner, names in DRAWS.items():
            patches += [(owner, name, _check_generator(getattr(owner, name))) for name in names]
        patches.append((torch, "tensor", _move_after(torch.tensor)))
        patches.append((torch.Tensor, "tolist", _read_whole(torch.Tensor.tolist)))
        for owner, name, replacement in patches:
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield NAME


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    on_device = [x for x in tensors if isinstance(x, DeviceTensor)]
    target = kwargs.get("device")
    if _logs:
        _note(func, args, on_device, target)
    if on_device and func not in MOVES:
        _refuse_mixed(func, args, [x for x in tensors if not isinstance(x, DeviceTensor)])
    raw_args, raw_kwargs = tree_map(lambda x: x.raw if isinstance(x, DeviceTensor) else x, (args, dict(kwargs)))
    if target is not None:
        raw_kwargs["device"] = torch.device("cpu")
    out = func(*raw_args, **raw_kwargs)
    if torch.device(target or (NAME if on_device else "cpu")).type != NAME:
        return out
    wrappers = {id(x.raw): x for x in on_device}  # in-place operations return their argument

    def wrap(x: Any) -> Any:
        return wrappers[id(x)] if id(x) in wrappers else DeviceTensor(x) if isinstance(x, torch.Tensor) else x

    return tree_map(wrap, out)


def _note(func: Any, args: Sequence[Any], on_device: Sequence[torch.Tensor], target: Any) -> None:
    """Add an operation to the log if the host waits for the device in it, or copies to it."""
    name = str(func)
    log = _logs[-1]
    if func in MOVES:
        if func is ATEN._to_copy.default:
            source = args[0]
            ends_on_device = isinstance(source, DeviceTensor) if target is None else torch.device(target).type == NAME
        else:
            source = args[1]
            ends_on_device = isinstance(args[0], DeviceTensor)
        if isinstance(source, DeviceTensor) and not ends_on_device:
            log.waits.append(_with_place(name))
        elif ends_on_device and not isinstance(source, DeviceTensor):
            log.pageable_copies.append(_with_place(name))
        return
    if not on_device:
        return
    indices = [x for x in tree_leaves(args[1:2]) if isinstance(x, torch.Tensor)] if func in INDEXES else []
    if func in READS or any(wait in name for wait in WAITS) or any(x.dtype == torch.bool for x in indices):
        log.waits.append(_with_place(name))
    if any(not isinstance(x, DeviceTensor) and x.dim() for x in indices):
        log.pageable_copies.append(_with_place(name))


def _with_place(operation: str) -> str:
    """An operation with the file and line of the project that run it."""
    frame = innermost_frame(__file__)
    return operation if frame is None else f"{operation} at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _refuse_mixed(func: Any, args: Sequence[Any], on_cpu: Sequence[torch.Tensor]) -> None:
    """Raise for CPU tensors in an operation on the device, except scalars (unless stacked) and indices, as on a GPU."""
    on_host = [x for x in on_cpu if x.dim() > 0 or func in JOINS]
    if func in INDEXES and isinstance(args[0], DeviceTensor):
        indices = {id(x) for x in tree_leaves(args[1])}
        on_host = [x for x in on_host if id(x) not in indices]
    if on_host:
        raise RuntimeError(f"{func} got tensors of two devices; on the CPU: shapes {[tuple(x.shape) for x in on_host]}")


def _check_generator(draw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wrap a sampling function: its generator must be on the device of the result."""

    def sample(*args: Any, generator: torch.Generator | None = None, **options: Any) -> torch.Tensor:
        filled = args[0] if args and isinstance(args[0], torch.Tensor) else None
        on = filled.device if filled is not None else torch.device(options.get("device") or "cpu")
        if generator is not None and generator.device.type != on.type:
            raise RuntimeError(f"tensor on {on.type}, but generator of {generator.device.type}")
        return draw(*args, **options) if generator is None else draw(*args, generator=generator, **options)

    return sample


def _move_after(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def tensor(data: Any, *, device: Any = None, **options: Any) -> torch.Tensor:
        created = make(data, **options)
        return created if device is None else created.to(device)

    return tensor


def _read_whole(to_list: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    def values(x: torch.Tensor) -> Any:
        if not isinstance(x, DeviceTensor):
            return to_list(x)
        if _logs:
            _logs[-1].waits.append(_with_place("tolist"))
        return to_list(x.raw)

    return values
