"""Each operation of `kernels.cpp` against its torch version, forward and backward."""

from __future__ import annotations

import platform
from collections.abc import Callable

import pytest
import torch

from finrl_pod.native.prebuild import find_compiler
from finrl_pod.rl.native import kernels
from finrl_pod.rl.native.kernels import asset_scores, tanh_of_sum
from finrl_pod.rl.optimisation.optimiser import Adam
from finrl_pod.types import Tensor

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def without_kernels(function: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> object:
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "load", lambda *_: None)
        return function()


def with_gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    weights = randn(*out.shape, seed=99)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), leaves)]


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (2, 200, 64), (40, 32, 24)])
def test_tanh_of_sum(shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = randn(*shape, seed=0) * 3, randn(shape[0], shape[2], seed=1)
    actual = with_gradients(tanh_of_sum, *inputs)
    expected = without_kernels(lambda: with_gradients(tanh_of_sum, *inputs), monkeypatch)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=2e-5)


def test_tanh_of_extreme_values() -> None:
    x = torch.tensor([0.0, 1e-20, -1e-3, 20.0, -200.0, torch.inf, -torch.inf, torch.nan] * 2).view(1, 2, 8)
    torch.testing.assert_close(tanh_of_sum(x, torch.zeros(1, 8)), torch.tanh(x), rtol=1e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("assets", [1, 7])
@pytest.mark.parametrize("members", [1, 3])
def test_asset_scores(assets: int, members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = (
        randn(members, 6, assets, 16, seed=0),
        randn(members, 6, 5, assets, seed=1),
        randn(members, 16, seed=2),
        randn(members, 16, seed=3),
    )
    actual = with_gradients(asset_scores, *inputs)
    expected = without_kernels(lambda: with_gradients(asset_scores, *inputs), monkeypatch)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("active", [None, [True, True, True], [True, False, True]])
def test_adam(active: list[bool] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[Tensor]:
        flat = randn(3, 9001, seed=0)
        adam = Adam(flat)
        moves = None if active is None else torch.tensor(active)
        for step in range(4):
            gradient = randn(3, 9001, seed=1 + step)
            if active is not None and not all(active):
                gradient[1] = torch.nan  # gradient of the inactive member
            adam.step(flat, gradient, torch.tensor([1e-2, 1e-3, 1e-4]), moves)
        return [flat, adam.first, adam.second, adam.steps]

    torch.testing.assert_close(run(), without_kernels(run, monkeypatch), rtol=1e-5, atol=1e-7)


def test_sums_are_independent_of_the_thread_count() -> None:
    inputs = randn(2, 500, 64, seed=0), randn(2, 64, seed=1)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(with_gradients(tanh_of_sum, *inputs))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="flushed on x86 only")
def test_denormals_are_flushed_within_kernels_only() -> None:
    """Decaying moments would stay denormal forever: 0.9 times the smallest denormal rounds to itself."""
    tiny = torch.tensor(1e-40)
    flat = randn(2, 100, seed=0)
    adam = Adam(flat)
    adam.first.fill_(1e-40)
    adam.second.fill_(1e-40)
    before = flat.clone()
    adam.step(flat, torch.zeros_like(flat), torch.full((2,), 1e-3), None)
    assert not adam.first.any()
    assert not adam.second.any()
    assert torch.equal(flat, before)
    assert float(tiny * 1) > 0
