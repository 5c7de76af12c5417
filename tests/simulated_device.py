"""Simulated torch device: its tensors wrap CPU tensors and, as on a GPU, cannot be mixed with tensors of the CPU.

Without a GPU this checks that a computation stays on its device, takes the branches of a device other than the CPU, and
gives the right results. It does not check a GPU's kernels, streams and memory; tests/gpu does. The device must be
registered before a process computes its first gradient, so its tests run in a separate process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from finrl_pod.native import philox

NAME = "simulated"
_setup_privateuseone_for_python_backend(NAME)
ATEN = torch.ops.aten
MOVES = {ATEN._to_copy.default, ATEN.copy_.default, ATEN.copy.default}
JOINS = {ATEN.cat.default, ATEN.stack.default}
INDEXES = {ATEN.index.Tensor, ATEN.index_put_.default, ATEN.index_put.default, ATEN._index_put_impl_.default}
DRAWS: Mapping[Any, Sequence[str]] = {
    torch: ("rand", "randn", "randint", "randperm"),
    torch.Tensor: ("exponential_", "uniform_", "normal_", "random_", "bernoulli_"),
}


class DeviceTensor(torch.Tensor):
    """Tensor on the simulated device; `raw` is the CPU tensor with its values."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> DeviceTensor:
        tensor: DeviceTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, raw.shape, strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )  # fmt: skip
        tensor.raw = raw
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})


class DeviceGenerator(torch.Generator):
    """CPU generator that reports the device it was created for."""

    def __new__(cls, device: torch.device | str = "cpu") -> DeviceGenerator:
        generator = super().__new__(cls, "cpu")  # type: ignore[call-arg]
        generator._device = torch.device(device)
        return generator

    def __init__(self, *_: Any) -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._device


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})


@contextlib.contextmanager
def simulated_device() -> Iterator[str]:
    """Register the simulated device; yields its name."""
    with pytest.MonkeyPatch.context() as patch, _Mode():
        patch.setattr(torch, "Generator", DeviceGenerator)
        patch.setattr(philox, "on_device", lambda device: False)  # the numbers of the CPU, to compare with it
        for owner, names in DRAWS.items():
            for name in names:
                patch.setattr(owner, name, _check_generator(getattr(owner, name)))
        patch.setattr(torch, "tensor", _move_after(torch.tensor))
        patch.setattr(torch.Tensor, "tolist", _unwrap_argument(torch.Tensor.tolist))
        yield NAME


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    on_device = [x for x in tensors if isinstance(x, DeviceTensor)]
    if on_device and func not in MOVES:
        _refuse_mixed(func, args, [x for x in tensors if not isinstance(x, DeviceTensor)])
    raw_args, raw_kwargs = tree_map(lambda x: x.raw if isinstance(x, DeviceTensor) else x, (args, dict(kwargs)))
    target = kwargs.get("device")
    if target is not None:
        raw_kwargs["device"] = torch.device("cpu")
    out = func(*raw_args, **raw_kwargs)
    if torch.device(target or (NAME if on_device else "cpu")).type != NAME:
        return out
    wrappers = {id(x.raw): x for x in on_device}  # in-place operations return their argument

    def wrap(x: Any) -> Any:
        return wrappers[id(x)] if id(x) in wrappers else DeviceTensor(x) if isinstance(x, torch.Tensor) else x

    return tree_map(wrap, out)


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


def _unwrap_argument(to_list: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    return lambda x: to_list(x.raw if isinstance(x, DeviceTensor) else x)
