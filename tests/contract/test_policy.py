"""Contract of every policy: a pure function that is independent across members, groups and accounts."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from finrl_pod.errors import ConfigError
from finrl_pod.rl.networks.policies import Policy, PolicyOutput, PolicySpec, make_policy

P, K, A, N, F = 3, 4, 2, 5, 3
DOUBLE = torch.float64


@pytest.fixture(params=["equivariant", "linear", "mlp"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(
    params=[(N + 1, "softmax"), (N + 1, "direct"), (N, "direct"), (N, "tilt")],
    ids=["weights", "shorts", "shares", "tilt"],
)
def policy(request: pytest.FixtureRequest, kind: str) -> Policy:
    size, action = request.param
    return make_policy(PolicySpec(kind, N, F, size, (8, 6), action))


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = DOUBLE) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def parameters(policy: Policy, dtype: torch.dtype = DOUBLE, members: int = P) -> dict[str, torch.Tensor]:
    """Initial weights plus noise, so that no weight is zero by construction."""
    each = [policy.init(torch.Generator().manual_seed(p), dtype) for p in range(members)]
    stacked = {name: torch.stack([member[name] for member in each]) for name in each[0]}
    return {
        name: value + 0.3 * draw(*value.shape, seed=i, dtype=dtype) for i, (name, value) in enumerate(stacked.items())
    }


def accounts(seed: int = 1, dtype: torch.dtype = DOUBLE) -> torch.Tensor:
    return torch.softmax(draw(P, K, A, N + 1, seed=seed, dtype=dtype), -1)


def mask() -> torch.Tensor:
    tradable = draw(P, K, N, seed=5) > -0.5
    tradable[..., 0] = True
    assert not tradable.all()
    return tradable


def assert_close(one: PolicyOutput, other: PolicyOutput) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)


def test_shapes_and_finite_numbers_in_both_precisions(policy: Policy) -> None:
    for dtype in (torch.float32, DOUBLE):
        params = parameters(policy, dtype)
        for tradable in (None, mask()):
            out = policy.forward(params, draw(P, K, N, F, dtype=dtype), accounts(dtype=dtype), tradable)
            assert out.mean.shape == (P, K, A, policy.spec.action_size)
            assert out.value.shape == (P, K, A)
            assert out.log_std.shape in ((P, 1), (P, policy.spec.action_size))
            for part in out:
                assert part.dtype == dtype
                assert torch.isfinite(part).all()


def test_accounts_outside_the_long_only_simplex_give_finite_outputs(policy: Policy) -> None:
    """Short positions, borrowed cash, an account with only cash, and one far above its starting cash."""
    account = torch.zeros(P, K, A, N + 1, dtype=DOUBLE)
    account[:, 0, 0, 0] = 1.0
    account[:, 1, 0] = torch.tensor([1.5, -0.5, 0.5, -1.0, 0.5, 0.0], dtype=DOUBLE)
    account[:, 2, 0] = torch.tensor([-1.0, 0.5, 0.5, 0.5, 0.5, 0.0], dtype=DOUBLE)
    account[:, 3, 0] = 1e6
    out = policy.forward(parameters(policy), draw(P, K, N, F), account, None)
    assert all(torch.isfinite(part).all() for part in out)


def test_value_equals_the_value_of_forward(policy: Policy) -> None:
    params, features, account = parameters(policy), draw(P, K, N, F), accounts()
    for tradable in (None, mask()):
        value = policy.value(params, features, account, tradable)
        assert torch.equal(value, policy.forward(params, features, account, tradable).value)


def test_full_mask_equals_no_mask(policy: Policy) -> None:
    params, features, account = parameters(policy), draw(P, K, N, F), accounts()
    full = torch.ones(P, K, N, dtype=torch.bool)
    assert_close(policy.forward(params, features, account, full), policy.forward(params, features, account, None))


def test_members_groups_and_accounts_are_independent(policy: Policy) -> None:
    """Each of the P x K x A outputs equals that of a single account with its member's weights."""
    params, features, account, tradable = parameters(policy), draw(P, K, N, F), accounts(), mask()
    out = policy.forward(params, features, account, tradable)
    for p in range(P):
        own = {name: value[p : p + 1] for name, value in params.items()}
        for k in range(K):
            for a in range(A):
                single = policy.forward(
                    own,
                    features[p : p + 1, k : k + 1],
                    account[p : p + 1, k : k + 1, a : a + 1],
                    tradable[p : p + 1, k : k + 1],
                )
                torch.testing.assert_close(out.mean[p, k, a], single.mean[0, 0, 0])
                torch.testing.assert_close(out.value[p, k, a], single.value[0, 0, 0])
                torch.testing.assert_close(out.log_std[p], single.log_std[0])


def test_every_parameter_has_an_effect(policy: Policy) -> None:
    params = {name: value.requires_grad_() for name, value in parameters(policy).items()}
    out = policy.forward(params, draw(P, K, N, F), accounts(), mask())
    total = out.mean.square().sum() + out.value.square().sum() + out.log_std.square().sum()
    gradients = torch.autograd.grad(total, list(params.values()))
    for name, gradient in zip(params, gradients, strict=True):
        assert all(gradient[p].any() for p in range(P)), name


def test_initial_weights_depend_only_on_the_generator(policy: Policy) -> None:
    one, same, other = (policy.init(torch.Generator().manual_seed(seed), torch.float32) for seed in (3, 3, 4))
    assert all(torch.equal(one[name], same[name]) for name in one)
    is_random = policy.spec.kind != "linear"  # all weights of a linear policy start at 0
    assert any(not torch.equal(one[name], other[name]) for name in one) == is_random
    assert all(value.dtype == torch.float32 for value in one.values())


def test_forward_does_not_modify_its_inputs(policy: Policy) -> None:
    params, features, account, tradable = parameters(policy), draw(P, K, N, F), accounts(), mask()
    inputs = [*params.values(), features, account, tradable]
    copies = [x.clone() for x in inputs]
    policy.forward(params, features, account, tradable)
    assert all(torch.equal(a, b) for a, b in zip(inputs, copies, strict=True))


def test_accounts_of_a_group_share_its_features(policy: Policy) -> None:
    """[P, K] groups of A accounts give what [P, K * A] groups of one account give."""
    params, features, account, tradable = parameters(policy), draw(P, K, N, F), accounts(), mask()
    shared = policy.forward(params, features, account, tradable)
    separate = policy.forward(
        params,
        features.repeat_interleave(A, 1),
        account.reshape(P, K * A, 1, N + 1),
        tradable.repeat_interleave(A, 1),
    )
    torch.testing.assert_close(shared.mean.reshape(P, K * A, 1, -1), separate.mean)
    torch.testing.assert_close(shared.value.reshape(P, K * A, 1), separate.value)


def test_tilt_policy_starts_at_the_base_portfolio(kind: str) -> None:
    policy = make_policy(PolicySpec(kind, N, F, N, (8, 6), "tilt"))
    each = [policy.init(torch.Generator().manual_seed(p), DOUBLE) for p in range(P)]
    params = {name: torch.stack([member[name] for member in each]).requires_grad_() for name in each[0]}
    mean = policy.mean(params, draw(P, K, N, F), accounts(), mask())
    assert not mean.any()
    gradients = torch.autograd.grad(mean.sum(), list(params.values()), allow_unused=True)
    assert any(gradient is not None and gradient.any() for gradient in gradients)  # training can change it


@pytest.mark.parametrize("hidden", [(8,), (8, 6), (8, 7, 6), (8, 5, 7, 6)])
def test_every_hidden_layer_has_parameters(kind: str, hidden: tuple[int, ...]) -> None:
    """The parameters have the sizes of all hidden layers, and each affects the outputs."""
    if kind == "linear":
        pytest.skip("a linear policy has no hidden layers")
    policy = make_policy(PolicySpec(kind, N, F, N + 1, hidden))
    params = {name: value.requires_grad_() for name, value in parameters(policy).items()}
    assert {size for value in params.values() for size in value.shape[1:]} >= set(hidden)
    out = policy.forward(params, draw(P, K, N, F), accounts(), mask())
    total = out.mean.square().sum() + out.value.square().sum() + out.log_std.square().sum()
    gradients = torch.autograd.grad(total, list(params.values()))
    assert all(gradient.any() for gradient in gradients)
    matrices = [x for name, x in params.items() if x.dim() == 3 and not name.startswith(("value_", "critic_"))]
    layers = [x for x in matrices if tuple(x.shape[1:]) in pairwise(hidden)]
    assert len(layers) >= len(hidden) - 1


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"must be one of equivariant, linear, mlp, got 'transformer'"):
        make_policy(PolicySpec("transformer", N, F, N, (8,)))
