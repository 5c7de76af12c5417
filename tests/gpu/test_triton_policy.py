"""Triton kernels of a policy's update against their torch versions, on a CUDA device or in Triton's interpreter.

TRITON_INTERPRET=1 python -m pytest -k triton tests/gpu
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from finrl_pod.native import philox
from finrl_pod.rl.fused import device_operations as ops
from tests.gpu.conftest import DEVICE, needs_triton

pytestmark = needs_triton
SIZES = [
    (1, 1, 1, 1, 1),
    (2, 3, 5, 4, 7),
    (1, 2, 33, 3, 16),
    (2, 1, 2, 2, 100),
]  # members, items, accounts, assets, units


@pytest.fixture(autouse=True)
def _tensors_on_device() -> Iterator[None]:
    with torch.device(DEVICE):
        yield


def normal(seed: int, dtype: torch.dtype = torch.float64) -> Callable[..., torch.Tensor]:
    generator = torch.Generator("cpu").manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu").to(DEVICE, dtype)


def both_ways(work: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Results of the Triton kernels and of torch."""
    ours = work()
    with monkeypatch.context() as patch:
        patch.setattr(ops, "use_triton", lambda x: False)
        return ours, work()


def backward_of_scores(*args: Any) -> list[torch.Tensor]:
    """Gradients of code, linear, u and w; the parts of the last two are summed."""
    of_code, of_linear, *parts = ops.asset_scores_backward(*args)
    return [of_code, of_linear, *(x.float().sum(1) if x.dtype == torch.bfloat16 else x.sum(1) for x in parts)]


def assert_close(ours: Any, theirs: Any, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_triton_tanh(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = normal(1, dtype)
    x, pooled, weight = draw(3, 5, 7), draw(3, 7), draw(3, 5)
    base = draw(3, 20)[:, :7]  # a view of the flat parameters
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    assert_close(*both_ways(lambda: ops.tanh_of_sum(x.clone(), base), monkeypatch), tolerance)
    y = torch.tanh(draw(3, 5, 7))
    for given in ((), (pooled,), (pooled, weight)):
        assert_close(*both_ways(lambda g=given: ops.tanh_backward(x.clone(), y, *g), monkeypatch), tolerance)  # type: ignore[misc]


def test_triton_indices_do_not_overflow_32_bits() -> None:
    """124 assets of 2^19 items are one row of the bias each: rows x units is more than 2^31."""
    from finrl_pod.rl.fused import triton_policy

    rows, units = 124 * 2**19, 64
    x, base = torch.zeros(1, units), torch.ones(1, units)
    tile = {"H": units, "H_BLOCK": units, "R_BLOCK": 2}
    triton_policy.tanh_of_sum[(1,)](x, base, 1, rows, units, **tile)
    assert_close(x, torch.tanh(base), 1e-6)
    grad, y = torch.zeros(1, units), torch.zeros(1, units)
    triton_policy.tanh_backward[(1,)](grad, y, base, None, 1, rows, SHARE=0.5, POOLED=True, WEIGHTED=False, **tile)
    assert_close(grad, 0.5 * base)


@pytest.mark.parametrize("n", [1, 7, 1500])
def test_triton_philox(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, counts = torch.tensor([-3, 1 << 61, 12345]), torch.tensor([0, 5, 1 << 35])
    kinds: tuple[tuple[philox.Kind, torch.dtype, float], ...] = (
        ("words", torch.int64, 0),
        ("uniform", torch.float32, 0),
        ("normal", torch.float64, 1e-12),
    )
    for kind, dtype, tolerance in kinds:
        ours = philox.philox(keys, counts, n, kind, dtype)
        with monkeypatch.context() as patch:
            patch.setattr(philox, "use_triton", lambda x: False)
            assert_close(ours, philox.philox(keys, counts, n, kind, dtype), tolerance)


def test_triton_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are rounded where they are stored, and nowhere before."""
    p, k, a, n, s = 2, 3, 5, 4, 7
    draw = normal(6, torch.bfloat16)
    x, base, y, pooled, weight = draw(3, 5, 7), draw(3, 7), torch.tanh(draw(3, 5, 7)), draw(3, 7), draw(3, 5)
    code, shared, account, linear = draw(p, k, n, s), draw(p, k, s), draw(p, k, a, 1 + n), draw(p, k, n)
    u, w, grad = draw(p, s), draw(p, s), draw(p, k, a, n)
    works: tuple[Callable[[], Any], ...] = (
        lambda: ops.tanh_of_sum(x.clone(), base),
        lambda: ops.tanh_backward(x.clone(), y, pooled, weight),
        lambda: ops.asset_scores(code, shared, account, linear, u, w),
        lambda: backward_of_scores(grad, code, shared, account, u, w),
    )
    for work in works:
        ours, theirs = both_ways(work, monkeypatch)
        assert_close(ours, theirs, 2**-6)  # a step of bfloat16: the interpreter cuts off where torch rounds
    exact = ops.asset_scores(*(z.double() for z in (code, shared, account, linear, u, w)))
    scores = works[2]()
    assert scores.dtype == torch.float32
    assert_close(scores.double(), exact, 1e-5)


@pytest.mark.parametrize("sizes", SIZES)
def test_triton_scores_of_assets(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    p, k, a, n, s = sizes
    draw = normal(2)
    code, shared, account, linear = draw(p, k, n, s), draw(p, k, s), draw(p, k, a, 1 + n), draw(p, k, n)
    u, w = draw(p, s + 3)[:, :s], draw(p, s + 3)[:, 1 : 1 + s]
    ours, theirs = both_ways(lambda: ops.asset_scores(code, shared, account, linear, u, w), monkeypatch)
    assert_close(ours, theirs)
    grad = draw(p, k, a, n)
    args = (grad, code, shared, account, u, w)
    assert_close(*both_ways(lambda: backward_of_scores(*args), monkeypatch))


@pytest.mark.parametrize("sizes", SIZES)
def test_triton_scores_of_items_that_share_rows(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    p, r, a, n, s = sizes
    k, draw = 4 * r + 1, normal(7)
    code, shared, account, linear = draw(p, r, n, s), draw(p, r, s), draw(p, k, a, 1 + n), draw(p, r, n)
    u, w, grad, slope = draw(p, s), draw(p, s), draw(p, k, a, n), draw(p, k, a, s)
    row = torch.randint(r, (p, k), generator=torch.Generator(DEVICE).manual_seed(1))
    items, summed = ops.ItemsOfRows.of(row, r), draw(p, k, s)
    for work in (
        lambda: ops.asset_scores(code, shared, account, linear, u, w, row),
        lambda: backward_of_scores(grad, code, shared, account, u, w, row, items),
        lambda: ops.held_codes(account, code, row),
        lambda: ops.held_codes_backward(slope, account, code, row, items),
        lambda: ops.sum_over_rows(summed, row, items),
    ):
        assert_close(*both_ways(work, monkeypatch))


def test_torch_version_of_the_triton_scores_has_the_gradient_of_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = normal(3)
    code, shared, account = draw(2, 3, 4, 5), draw(2, 3, 5), draw(2, 3, 6, 5)
    u, w, linear, grad = draw(2, 5), draw(2, 5), draw(2, 3, 4), draw(2, 3, 6, 4)
    leaves = [x.requires_grad_() for x in (code, u, w)]
    inner = (code + shared.unsqueeze(2)).unsqueeze(2) + 4 * account[..., 1:, None] * u.view(2, 1, 1, 1, 5)
    scores = (torch.tanh(inner) * w.view(2, 1, 1, 1, 5)).sum(-1) + linear.unsqueeze(2)
    expected = torch.autograd.grad((scores * grad).sum(), leaves)
    with torch.no_grad():
        monkeypatch.setattr(ops, "CHUNK_NUMBERS", 200)  # several chunks
        of_code, of_linear, of_u, of_w = ops.asset_scores_backward(grad, code, shared, account, u, w)
    assert_close((of_code, of_u.sum(1), of_w.sum(1)), expected)
    assert_close(of_linear, grad.sum(2))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("members", "items", "accounts", "scores"), [(1, 2, 1, 1), (2, 6, 5, 3), (2, 300, 2, 20)])
def test_triton_loss(
    masked: bool, members: int, items: int, accounts: int, scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, rows = normal(4), items * accounts
    mean, action = draw(members, rows, scores), draw(members, rows, scores)
    numbers = torch.cat([draw(members, rows, 1) - 1.4 * scores, draw(members, rows, 2)], -1)
    valid = draw(members, items, scores) > -0.5 if masked else None
    clip_range, coefficient = torch.full((members,), 0.2).double(), draw(members).abs()

    def loss(log_std: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gradient = mean.clone()
        return ops.ppo_loss(gradient, log_std, action, numbers, valid, clip_range, coefficient), gradient

    for size in (1, scores):
        log_std = 0.1 * draw(members, size)
        assert_close(*both_ways(lambda x=log_std: loss(x), monkeypatch))  # type: ignore[misc]


@pytest.mark.parametrize("rows", [3, 2500])
def test_triton_loss_of_values(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = normal(8)
    values, numbers, coefficient = draw(2, rows), draw(2, rows, 3), draw(2).abs()

    def loss() -> tuple[torch.Tensor, torch.Tensor]:
        gradient = values.clone()
        return ops.value_loss(gradient, numbers, coefficient), gradient

    (error, gradient), theirs = both_ways(loss, monkeypatch)
    assert_close((error, gradient), theirs)
    leaf = values.clone().requires_grad_()
    (coefficient.unsqueeze(1) * (leaf - numbers[..., 2]).square() / rows).sum().backward()
    assert_close(gradient, leaf.grad)


@pytest.mark.parametrize("size", [1, 1000, 3000])
def test_triton_adam(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of members that move, are not active, have too large a divergence, or a loss that is not finite."""
    draw = normal(5)
    start = (draw(4, size), draw(4, size), draw(4, size).abs(), torch.tensor([0.0, 3.0, 1.0, 7.0]).double())
    gradient, sums, value_losses = draw(4, size), draw(4, 7), draw(4)
    sums[:, 0] = torch.tensor([0.01, 0.01, 0.5, 0.01])
    value_losses[3] = torch.inf
    limits = (draw(4).abs() * 1e-3, torch.full((4,), 0.5).double(), torch.full((4,), 0.1).double())
    active, constants = torch.tensor([True, False, True, True]), (0.9, 0.999, 1e-8)

    def step() -> tuple[torch.Tensor, ...]:
        state, alive = [x.clone() for x in start], torch.ones(4, dtype=torch.bool)
        metrics = ops.adam_clipped(tuple(state), gradient, sums, value_losses, limits, active, alive, constants)  # type: ignore[arg-type]
        return (*state, metrics, alive)

    ours, theirs = both_ways(step, monkeypatch)
    assert_close(ours, theirs)
    assert ours[-1].tolist() == [True, True, True, False]
    assert [bool((x != y).any()) for x, y in zip(ours[0], start[0], strict=True)] == [True, False, False, False]
