"""Launches of Triton kernels: their grids, plans without a device, and torch instead of kernels that do not compile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.errors import InputError
from finrl_pod.native import kernel_launch, philox
from finrl_pod.native.device import as_on_device
from finrl_pod.native.kernel_launch import (
    GRID_LIMITS,
    Launch,
    is_triton_installed,
    launch,
    planned_launches,
    use_triton,
    with_fallback,
)
from finrl_pod.rl.fused import device_operations as ops
from finrl_pod.settings.run import EnvironmentConfig
from tests.markets import random_market

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
    numbers, coefficient = empty(PODS, ROWS, 3), empty(PODS)
    scores, log_std = empty(PODS, ROWS, SCORES), empty(PODS, SCORES)
    ops.ppo_loss(scores, log_std, scores, numbers, None, coefficient, coefficient)
    ops.value_loss(empty(PODS, ROWS), numbers, coefficient)


def adam_step() -> None:
    flat, steps, flags = empty(PODS, 2**27), empty(PODS), empty(PODS, dtype=torch.bool)
    state, limits = (flat, flat, flat, steps), (steps, steps, steps)
    ops.adam_clipped(state, flat, empty(PODS, 3 + SCORES), steps, limits, flags, flags, (0.9, 0.999, 1e-8))


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


# ---------------------------------------------------------------------- plans and fallbacks


def test_planned_launches_are_not_run() -> None:
    kernel = Kernel()
    plans: list[Launch] = []
    with planned_launches(plans.append):
        launch(kernel, (3, 2), 5, BLOCK=8)
    assert kernel.grids == []
    assert plans == [Launch(kernel, (3, 2), (5,), {"BLOCK": 8})]
    assert plans[0].name == "kernel"


class Uncompilable(Kernel):
    """Raises what Triton raises for a kernel that it cannot compile."""

    __name__ = "uncompilable"

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*args: Any, **constants: Any) -> None:
            self.grids.append(grid)
            raise self.error

        return run


def compile_error() -> Exception:
    from triton.compiler.errors import CompilationError  # type: ignore[import-untyped]

    return CompilationError(None, None, "no such operation")


@pytest.fixture
def refused_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is refused before the test, and kernels are used on the CPU."""
    monkeypatch.setattr(kernel_launch, "_refused_kernels", {})
    monkeypatch.setattr(kernel_launch, "is_interpreted", lambda: True)


@pytest.mark.skipif(not is_triton_installed(), reason="needs triton")
@pytest.mark.usefixtures("refused_kernels")
def test_torch_computes_what_does_not_compile_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    kernel = Uncompilable(compile_error())

    @with_fallback
    def double(x: torch.Tensor) -> torch.Tensor:
        if use_triton(x):
            launch(kernel, (1,), x)
            return x
        return 2 * x

    x = torch.ones(2)
    with caplog.at_level(logging.WARNING):
        assert double(x).tolist() == [2, 2]
        assert double(x).tolist() == [2, 2]
    (record,) = caplog.records
    assert "uncompilable" in record.message
    assert "no such operation" in record.message
    assert kernel.grids == [(1,)]  # compiled once
    assert use_triton(x)  # other kernels still run


@pytest.mark.skipif(not is_triton_installed(), reason="needs triton")
@pytest.mark.usefixtures("refused_kernels")
def test_other_errors_of_a_launch_are_passed_on() -> None:
    from triton.runtime.errors import InterpreterError  # type: ignore[import-untyped]

    for error in (RuntimeError("an illegal memory access"), InterpreterError("a bug")):
        with pytest.raises(type(error)):
            launch(Uncompilable(error), (1,))


@pytest.mark.skipif(not is_triton_installed(), reason="needs triton")
@pytest.mark.usefixtures("refused_kernels")
def test_market_is_stepped_by_torch_if_its_kernel_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    from finrl_pod_envs import triton_step

    monkeypatch.setattr(triton_step, "market_step", Uncompilable(compile_error()))
    market = random_market(0, bars=30, assets=3)
    rules = EnvironmentConfig(envs=4, group=2, window=10)
    with as_on_device():
        env = make_env(market, rules)
        env.reset(0)
        plain = make_env(market, rules)
        plain.reset(0)
        action = torch.randn(1, 4, env.action_size, generator=torch.Generator().manual_seed(0))
        assert env._native is not None
        plain._native = None
        for _ in range(2):
            ours, theirs = env.step(action), plain.step(action)
            assert torch.equal(ours.reward, theirs.reward)
            assert torch.equal(ours.observation.account, theirs.observation.account)
    assert env._native is None
