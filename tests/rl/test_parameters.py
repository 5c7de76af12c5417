"""Parameters as rows of one tensor; Adam and gradient clipping for each member against torch's own."""

from __future__ import annotations

import pytest
import torch

from finrl_pod.rl.optimisation.optimiser import Adam, Optimiser, Parameters, RMSprop, WeightDecay, clip_by_member

P, D = 4, 7
RATES = (1e-3, 1e-2, 0.1, 1.0)
DOUBLE = torch.float64


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = DOUBLE) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [(DOUBLE, 1e-13), (torch.float32, 1e-4)])  # 1 - 0.999 in float32
@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "mask of ones"])
def test_each_member_matches_a_separate_torch_adam(dtype: torch.dtype, tolerance: float, masked: bool) -> None:
    flat = draw(P, D, dtype=dtype)
    rows = [row.clone().requires_grad_() for row in flat]
    theirs = [torch.optim.Adam([row], lr=rate) for row, rate in zip(rows, RATES, strict=True)]
    ours, rates = Adam(flat), torch.tensor(RATES, dtype=dtype)
    for step in range(30):
        gradient = draw(P, D, seed=step + 1, dtype=dtype) * 10.0 ** (step % 5 - 3)
        factor = 1 - step / 30
        ours.step(flat, gradient, rates * factor, torch.ones(P, dtype=torch.bool) if masked else None)
        for row, optimiser, rate, grad in zip(rows, theirs, RATES, gradient, strict=True):
            optimiser.param_groups[0]["lr"] = rate * factor
            row.grad = grad.clone()
            optimiser.step()
    expected = torch.stack([row.detach() for row in rows])
    torch.testing.assert_close(flat, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32])
def test_adam_epsilon_matches_torch(dtype: torch.dtype) -> None:
    flat = draw(P, D, dtype=dtype)
    row = flat[1].clone().requires_grad_()
    theirs, ours = torch.optim.Adam([row], lr=0.1, eps=1e-3), Adam(flat, 1e-3)
    for step in range(5):
        gradient = draw(P, D, seed=step + 1, dtype=dtype) * 1e-3
        row.grad = gradient[1].clone()
        ours.step(flat, gradient, torch.full((P,), 0.1, dtype=dtype), None)
        theirs.step()
    torch.testing.assert_close(flat[1], row.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "mask of ones"])
def test_each_member_matches_a_separate_torch_rmsprop(masked: bool) -> None:
    flat = draw(P, D)
    rows = [row.clone().requires_grad_() for row in flat]
    theirs = [torch.optim.RMSprop([row], lr=rate, alpha=0.99, eps=1e-5) for row, rate in zip(rows, RATES, strict=True)]
    ours: Optimiser = RMSprop(flat, 1e-5)
    for step in range(30):
        gradient = draw(P, D, seed=step + 1) * 10.0 ** (step % 5 - 3)
        ours.step(
            flat, gradient, torch.tensor(RATES, dtype=DOUBLE), torch.ones(P, dtype=torch.bool) if masked else None
        )
        for row, optimiser, grad in zip(rows, theirs, gradient, strict=True):
            row.grad = grad.clone()
            optimiser.step()
    torch.testing.assert_close(flat, torch.stack([row.detach() for row in rows]), rtol=1e-13, atol=1e-13)


def test_rmsprop_skips_masked_members_and_copies_member_state() -> None:
    flat, rates = draw(P, D), torch.tensor(RATES, dtype=DOUBLE)
    optimiser = RMSprop(flat, 1e-5)
    optimiser.step(flat, draw(P, D, seed=1), rates, None)
    unchanged, square = flat.clone(), optimiser.square.clone()
    gradient = draw(P, D, seed=2)
    gradient[1] = torch.nan
    optimiser.step(flat, gradient, rates, torch.tensor([True, False, True, True]))
    assert torch.equal(flat[1], unchanged[1])
    assert torch.equal(optimiser.square[1], square[1])
    assert (flat[0] != unchanged[0]).all()
    optimiser.load(1, optimiser.member(3))
    assert torch.equal(optimiser.square[1], optimiser.square[3])


def test_masked_members_do_not_move_even_with_nan_gradients() -> None:
    flat, rates = draw(P, D), torch.tensor(RATES, dtype=DOUBLE)
    optimiser = Adam(flat)
    for step in range(3):
        optimiser.step(flat, draw(P, D, seed=step), rates, None)
    unchanged = [x.clone() for x in (flat, optimiser.first, optimiser.second, optimiser.steps)]
    gradient = draw(P, D, seed=9)
    gradient[1], gradient[2, 0] = torch.nan, torch.inf
    optimiser.step(flat, gradient, rates, torch.tensor([True, False, False, True]))
    for now, before in zip((flat, optimiser.first, optimiser.second, optimiser.steps), unchanged, strict=True):
        assert torch.equal(now[1:3], before[1:3])
        assert (now[[0, 3]] != before[[0, 3]]).all()
        assert torch.isfinite(now).all()


def test_paused_member_keeps_its_step_count() -> None:
    """Skipped steps must not affect the bias correction."""
    gradients = [draw(P, D, seed=i) for i in range(5)]
    rates = torch.tensor(RATES, dtype=DOUBLE)
    paused, uninterrupted = draw(P, D), draw(P, D)
    one, other = Adam(paused), Adam(uninterrupted)
    for i, gradient in enumerate(gradients):
        one.step(paused, gradient, rates, torch.tensor([True, True, True, i not in (0, 2)]))
        if i not in (0, 2):
            other.step(uninterrupted, gradient, rates, None)
    assert one.steps.tolist() == [5, 5, 5, 3]
    assert torch.equal(paused[3], uninterrupted[3])
    assert torch.equal(one.first[3], other.first[3])


def test_gradients_are_clipped_for_each_member() -> None:
    gradient = draw(P, D) * torch.tensor([[0.01], [1.0], [100.0], [0.0]], dtype=DOUBLE)
    limit = torch.tensor([0.5, 0.5, 2.0, 0.5], dtype=DOUBLE)
    unchanged = gradient.clone()
    clipped, norm = clip_by_member(gradient, limit)
    assert torch.equal(gradient, unchanged)
    for p in range(P):
        row = torch.zeros(D, dtype=DOUBLE).requires_grad_()
        row.grad = gradient[p].clone()
        before = torch.nn.utils.clip_grad_norm_([row], float(limit[p]))
        assert float(norm[p]) == pytest.approx(float(before))
        torch.testing.assert_close(clipped[p], row.grad, rtol=3e-6, atol=0)  # torch adds 1e-6 to the norm
    torch.testing.assert_close(clipped[0], gradient[0], rtol=0, atol=0)
    assert float(clipped[2].norm()) == pytest.approx(2.0)


def test_nan_gradient_of_one_member_does_not_affect_others() -> None:
    gradient = draw(P, D)
    gradient[1, 3] = torch.nan
    clipped, norm = clip_by_member(gradient, torch.full((P,), 0.5, dtype=DOUBLE))
    assert torch.isfinite(norm).tolist() == torch.isfinite(clipped).all(1).tolist() == [True, False, True, True]


def members(seed: int = 0) -> list[dict[str, torch.Tensor]]:
    return [{"w": draw(3, 2, seed=seed + p), "b": draw(2, seed=100 + seed + p)} for p in range(P)]


def test_views_and_rows_share_memory() -> None:
    member_params = members()
    parameters = Parameters(member_params)
    assert parameters.flat.shape == (P, 8)
    assert {name: view.shape for name, view in parameters.views.items()} == {"w": (P, 3, 2), "b": (P, 2)}
    for p in range(P):
        assert all(torch.equal(parameters.member(p)[name], member_params[p][name]) for name in member_params[p])
    parameters.flat[2] = 7.0
    assert (parameters.views["w"][2] == 7).all()
    assert (parameters.views["b"][2] == 7).all()
    assert torch.equal(parameters.member(1)["w"], member_params[1]["w"])


def test_gradient_rows_are_independent_between_members() -> None:
    parameters = Parameters(members())
    x = draw(P, 5, 3, seed=7)

    def losses() -> torch.Tensor:
        out = torch.tanh(torch.bmm(x, parameters.views["w"]) + parameters.views["b"].unsqueeze(1))
        return out.square().mean(dim=(1, 2))

    batched = parameters.gradient(losses().sum())
    assert batched.shape == (P, 8)
    for p in range(P):
        single = Parameters([parameters.member(p)])
        out = torch.tanh(x[p] @ single.views["w"][0] + single.views["b"][0])
        torch.testing.assert_close(batched[p : p + 1], single.gradient(out.square().mean()))


def test_loading_a_member_changes_that_member_only() -> None:
    parameters, other = Parameters(members()), members(50)[0]
    unchanged = parameters.flat.clone()
    parameters.load(2, other)
    assert all(torch.equal(parameters.member(2)[name], other[name]) for name in other)
    assert torch.equal(parameters.flat[[0, 1, 3]], unchanged[[0, 1, 3]])
    copy = parameters.member(2)
    copy["w"].zero_()
    assert torch.equal(parameters.member(2)["w"], other["w"])


def test_adam_state_can_be_copied_and_loaded_per_member() -> None:
    flat, rates = draw(P, D), torch.tensor(RATES, dtype=DOUBLE)
    optimiser = Adam(flat)
    for i in range(4):
        optimiser.step(flat, draw(P, D, seed=i), rates, torch.tensor([True, True, i < 2, True]))
    saved = optimiser.member(2)
    assert float(saved["steps"]) == 2
    unchanged = optimiser.first.clone()
    optimiser.load(0, saved)
    assert all(torch.equal(optimiser.member(0)[name], saved[name]) for name in saved)
    assert torch.equal(optimiser.first[1:], unchanged[1:])
    assert all(torch.equal(optimiser.member(2)[name], saved[name]) for name in saved)


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32])
def test_weight_decay_is_that_of_torchs_adamw_on_weights_alone(dtype: torch.dtype) -> None:
    members = [
        {"code_w": draw(3, 2, seed=p), "w1": draw(4, seed=9 + p), "code_b": draw(2, seed=20 + p)} for p in (0, 1)
    ]
    members = [{**each, "log_std": draw(1, seed=30)} for each in members]
    parameters = Parameters([{name: x.to(dtype) for name, x in each.items()} for each in members])
    before = parameters.flat.clone()
    rows = [{name: x.to(dtype).clone().requires_grad_() for name, x in each.items()} for each in members]
    rates, decay = (1e-2, 0.1), 0.3
    theirs = [
        torch.optim.AdamW(
            [
                {"params": [row["code_w"], row["w1"]], "weight_decay": decay},
                {"params": [row["code_b"], row["log_std"]], "weight_decay": 0.0},
            ],
            lr=rate,
        )
        for row, rate in zip(rows, rates, strict=True)
    ]
    ours, rate = Adam(parameters.flat), torch.tensor(rates, dtype=dtype)
    shrinking = WeightDecay(parameters, decay)
    for step in range(20):
        gradient = draw(*parameters.flat.shape, seed=step, dtype=dtype)
        with shrinking.after_step(ours, rate):
            ours.step(parameters.flat, gradient, rate, None)
        views = parameters.views_of(gradient)
        for p, (row, optimiser) in enumerate(zip(rows, theirs, strict=True)):
            for name, x in row.items():
                x.grad = views[name][p].clone()
            optimiser.step()
    expected = torch.stack([torch.cat([x.detach().flatten() for x in row.values()]) for row in rows])
    tolerance = 1e-12 if dtype == DOUBLE else 1e-4
    torch.testing.assert_close(parameters.flat, expected, rtol=tolerance, atol=tolerance)
    assert not torch.equal(before, parameters.flat)


def test_members_that_take_no_step_do_not_decay() -> None:
    parameters = Parameters([{"code_w": draw(3, 2, seed=p)} for p in (0, 1)])
    before, optimiser, rate = parameters.flat.clone(), Adam(parameters.flat), torch.full((2,), 0.1, dtype=DOUBLE)
    with WeightDecay(parameters, 0.5).after_step(optimiser, rate):
        optimiser.step(parameters.flat, draw(2, 6), rate, torch.tensor([True, False]))
    assert torch.equal(parameters.flat[1], before[1])
    assert not torch.equal(parameters.flat[0], before[0])
