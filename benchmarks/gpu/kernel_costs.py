"""What the launch of a Triton kernel costs: bytes moved and floating-point operations.

Every tensor is read or written once, those that are changed in place are both. Repeated reads are served by the caches.
Operations are counted from the source of a kernel, an exponential, a root or a division as one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from finrl_pod.native.kernel_launch import Launch

Arguments = Mapping[str, Any]


class KernelCost(NamedTuple):
    """Costs of one launch."""

    moved_bytes: int
    flops: int


class _Counts(NamedTuple):
    """How the costs of a kernel follow from its arguments. in_place: names of arguments that it reads and writes."""

    flops: Callable[[Arguments], int]
    in_place: tuple[str, ...] = ()


def _per_number(name: str, flops: int) -> Callable[[Arguments], int]:
    """A fixed number of operations for each number of a tensor."""
    return lambda arguments: flops * int(arguments[name].numel())


def _per_unit(name: str, flops: int) -> Callable[[Arguments], int]:
    """A fixed number of operations for each unit of each number [P, K, A, N] of a tensor."""
    return lambda arguments: flops * int(arguments[name].numel()) * int(arguments["S"])


def _per_asset(name: str, flops: int) -> Callable[[Arguments], int]:
    """A fixed number of operations for each asset of each number [P, K, A, S] of a tensor."""
    return lambda arguments: flops * int(arguments[name].numel()) * int(arguments["N"])


COUNTS: Mapping[str, _Counts] = {
    "tanh_of_sum": _Counts(_per_number("x", 6), ("x",)),
    "tanh_backward": _Counts(_per_number("grad", 5), ("grad",)),
    "asset_scores": _Counts(_per_unit("scores", 10)),
    "asset_scores_backward": _Counts(_per_unit("grad", 18)),
    "held_codes": _Counts(_per_asset("out", 2)),
    "held_codes_backward": _Counts(_per_asset("grad", 2)),
    "sum_over_rows": _Counts(_per_number("x", 1)),
    "ppo_loss": _Counts(_per_number("mean", 14), ("mean",)),
    "value_loss": _Counts(_per_number("value", 6), ("value",)),
    "judge_gradient": _Counts(_per_number("gradient", 2)),
    "adam": _Counts(_per_number("flat", 14), ("flat", "first", "second")),
    "market_step": _Counts(_per_number("shares_in", 60)),
    "philox": _Counts(_per_number("numbers_out", 28)),  # beside 30 operations on integers
}


def cost_of(launch: Launch) -> KernelCost:
    """The costs of a launch. Raises KeyError for a kernel that is not in `COUNTS`."""
    counts = COUNTS[launch.name]
    arguments = {**dict(zip(launch.kernel.arg_names, launch.args, strict=False)), **launch.constants}
    sizes = {name: x.numel() * x.element_size() for name, x in arguments.items() if isinstance(x, torch.Tensor)}
    return KernelCost(sum(sizes.values()) + sum(sizes[name] for name in counts.in_place), counts.flops(arguments))
