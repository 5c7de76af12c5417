"""Precision of matrix products on CUDA devices, which is a setting of the whole process, and grids of launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from finrl_pod.errors import InputError
from finrl_pod.native import philox
from finrl_pod.native.device import GRID_LIMITS, is_triton_installed, launch, matmul_precision
from finrl_pod.rl.fused import device_operations as ops


def test_tf32_is_used_inside_only() -> None:
    before = torch.get_float32_matmul_precision()
    with matmul_precision("tf32", torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(("precision", "device"), [("float32", "cuda"), ("tf32", "cpu")])
def test_other_products_are_left_alone(precision: str, device: str) -> None:
    before = torch.get_float32_matmul_precision()
    with matmul_precision(precision, torch.device(device)):
        assert torch.get_float32_matmul_precision() == before


# ---------------------------------------------------------------------- grids

ACCOUNTS, HORIZON, ASSETS, PODS, SCORES, UNITS = 2**18, 64, 30, 4, 100, 64
ROWS = ACCOUNTS * HORIZON // 4  # of a minibatch


class Kernel:
    """Notes the grids that it is launched on."""

    __name__ = "kernel"

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **constants: self.grids.append(grid)


@pytest.mark.parametrize("grid", [(1, 65_536), (1, 1, 65_536), (2**31,), (2**31, 1)])
def test_grid_that_no_gpu_takes_is_refused(grid: tuple[int, ...]) -> None:
    kernel = Kernel()
    with pytest.raises(InputError, match="65535"):
        launch(kernel, grid)
    assert kernel.grids == []


@pytest.mark.parametrize("grid", [(7,), (2**31 - 1, 65_535, 65_535)])
def test_grid_within_the_limits_is_launched(grid: tuple[int, ...]) -> None:
    kernel = Kernel()
    launch(kernel, grid)
    assert kernel.grids == [grid]


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor without data."""
    return torch.empty(*shape, dtype=dtype, device="meta")


def policy_gradient() -> None:
    numbers, coefficients = empty(PODS, ROWS, 3), (empty(PODS),) * 3
    scores, log_std, values = empty(PODS, ROWS, SCORES), empty(PODS, SCORES), empty(PODS, ROWS)
    ops.ppo_loss(scores, log_std, values, scores, numbers, None, coefficients)


def adam_step() -> None:
    flat, steps, flags = empty(PODS, 2**27), empty(PODS), empty(PODS, dtype=torch.bool)
    state, limits = (flat, flat, flat, steps), (steps, steps, steps)
    ops.adam_clipped(state, flat, empty(PODS, 4 + SCORES), limits, flags, flags, (0.9, 0.999, 1e-8))


def score_gradients() -> None:
    code, shared, account = empty(PODS, ROWS, ASSETS, UNITS), empty(PODS, ROWS, UNITS), empty(PODS, ROWS, 1, 1 + ASSETS)
    slope = empty(PODS, UNITS)
    scores = ops.asset_scores(code, shared, account, empty(PODS, ROWS, ASSETS), slope, slope)
    ops.asset_scores_backward(scores, code, shared, account, slope, slope)


def activations() -> None:
    code = empty(PODS * ROWS, ASSETS, UNITS)
    ops.tanh_of_sum(code, empty(PODS * ROWS, UNITS))
    ops.tanh_backward(code, code)


def random_numbers() -> None:
    whole = empty(PODS, dtype=torch.int64)
    philox.philox(whole, whole, ACCOUNTS * HORIZON * ASSETS, "normal", torch.float32)


@pytest.mark.slow
@pytest.mark.skipif(not is_triton_installed(), reason="needs triton")
@pytest.mark.parametrize("work", [policy_gradient, adam_step, score_gradients, activations, random_numbers])
def test_grids_of_many_accounts_are_within_the_limits(
    work: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On tensors without data: 2^18 accounts of 30 assets, 64 steps, four pods."""
    grids: list[tuple[int, ...]] = []

    def note(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
        grids.append(grid)

    for module in (philox, ops):
        monkeypatch.setattr(module, "use_triton", lambda x: True)
        monkeypatch.setattr(module, "launch", note)
    work()
    assert grids
    for grid in grids:
        assert all(1 <= size <= limit for size, limit in zip(grid, GRID_LIMITS, strict=False))
