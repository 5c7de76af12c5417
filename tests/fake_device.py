"""A device that is not there: tensors that say they are on it hold one on the CPU, and refuse to be mixed as on a GPU.

Where no GPU is at hand this shows that a computation stays on its device, and what it comes to there: a branch that
looks at the device takes the way of one that is no CPU. What only a real one has (its kernels, streams, memory) it
does not show; tests/gpu does. It has to be there before the first gradient of a process is taken, so what uses it has a
process of its own.
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

NAME = "pretend"
_setup_privateuseone_for_python_backend(NAME)
ATEN = torch.ops.aten
MOVES = {ATEN._to_copy.default, ATEN.copy_.default, ATEN.copy.default}
JOINS = {ATEN.cat.default, ATEN.stack.default}
INDEXES = {ATEN.index.Tensor, ATEN.index_put_.default, ATEN.index_put.default, ATEN._index_put_impl_.default}
DRAWS: Mapping[Any, Sequence[str]] = {
    torch: ("rand", "randn", "randint", "randperm"),
    torch.Tensor: ("exponential_", "uniform_", "normal_", "random_", "bernoulli_"),
}


class There(torch.Tensor):
    """A tensor on the device."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> There:
        made: There = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, raw.shape, strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )  # fmt: skip
        made.raw = raw
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})


class Stream(torch.Generator):
    """Draws the numbers of a CPU's stream, and says that it is elsewhere."""

    def __new__(cls, device: torch.device | str = "cpu") -> Stream:
        made = super().__new__(cls, "cpu")  # type: ignore[call-arg]
        made._says = torch.device(device)
        return made

    def __init__(self, *_: Any) -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._says


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})


@contextlib.contextmanager
def fake_device() -> Iterator[str]:
    """Its name, for as long as it is there."""
    with pytest.MonkeyPatch.context() as patch, _Mode():
        patch.setattr(torch, "Generator", Stream)
        for owner, names in DRAWS.items():
            for name in names:
                patch.setattr(owner, name, _of_its_own_stream(getattr(owner, name)))
        patch.setattr(torch, "tensor", _moved_afterwards(torch.tensor))
        patch.setattr(torch.Tensor, "tolist", _of_raw(torch.Tensor.tolist))
        yield NAME


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    there = [x for x in tensors if isinstance(x, There)]
    if there and func not in MOVES:
        _refuse_mixed(func, args, [x for x in tensors if not isinstance(x, There)])
    raw_args, raw_kwargs = tree_map(lambda x: x.raw if isinstance(x, There) else x, (args, dict(kwargs)))
    wanted = kwargs.get("device")
    if wanted is not None:
        raw_kwargs["device"] = torch.device("cpu")
    out = func(*raw_args, **raw_kwargs)
    if torch.device(wanted or (NAME if there else "cpu")).type != NAME:
        return out
    same = {id(x.raw): x for x in there}  # what is written in place is handed back as it is

    def moved(x: Any) -> Any:
        return same[id(x)] if id(x) in same else There(x) if isinstance(x, torch.Tensor) else x

    return tree_map(moved, out)


def _refuse_mixed(func: Any, args: Sequence[Any], here: Sequence[torch.Tensor]) -> None:
    """A single number may be anywhere, but not to be stacked; and so may indices of a tensor on the device."""
    odd = [x for x in here if x.dim() > 0 or func in JOINS]
    if func in INDEXES and isinstance(args[0], There):
        indices = {id(x) for x in tree_leaves(args[1])}
        odd = [x for x in odd if id(x) not in indices]
    if odd:
        raise RuntimeError(f"{func} was given tensors of two devices, of shapes {[tuple(x.shape) for x in odd]} on cpu")


def _of_its_own_stream(draw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A tensor is drawn by a stream of its device alone."""

    def drawn(*args: Any, generator: torch.Generator | None = None, **terms: Any) -> torch.Tensor:
        filled = args[0] if args and isinstance(args[0], torch.Tensor) else None
        on = filled.device if filled is not None else torch.device(terms.get("device") or "cpu")
        if generator is not None and generator.device.type != on.type:
            raise RuntimeError(f"numbers on {on.type} were to be drawn by a generator of {generator.device.type}")
        return draw(*args, **terms) if generator is None else draw(*args, generator=generator, **terms)

    return drawn


def _moved_afterwards(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def tensor(data: Any, *, device: Any = None, **terms: Any) -> torch.Tensor:
        made = make(data, **terms)
        return made if device is None else made.to(device)

    return tensor


def _of_raw(to_list: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    return lambda x: to_list(x.raw if isinstance(x, There) else x)
