"""The MLP policy against torch.nn, and the equivariance of the equivariant policy."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from finrl_pod_envs.observation import flat

from finrl_pod.rl.networks.policies import EquivariantPolicy, MlpPolicy, PolicySpec
from finrl_pod.types import Observation
from tests.markets import random_market

P, K, A, N, F = 2, 4, 3, 5, 3
DOUBLE = torch.float64
Params = Mapping[str, torch.Tensor]


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def stacked_params(policy: EquivariantPolicy | MlpPolicy) -> dict[str, torch.Tensor]:
    each = [policy.init(torch.Generator().manual_seed(p), DOUBLE) for p in range(P)]
    params = {name: torch.stack([member[name] for member in each]) for name in each[0]}
    return {name: value + 0.3 * draw(*value.shape, seed=i) for i, (name, value) in enumerate(params.items())}


def accounts(assets: int = N) -> torch.Tensor:
    return torch.softmax(draw(P, K, A, assets + 1, seed=1), -1)


def torch_tower(params: Params, p: int, name: str, layers: int) -> torch.nn.Sequential:
    """torch.nn layers with member p's weights; input is the flat observation: account, then features by asset."""
    first = torch.cat([params[f"{name}_own_w"][p], params[f"{name}_table_w"][p]])
    weights = [first, *(params[f"{name}_w{i}"][p] for i in range(1, layers + 1))]
    biases = [params[f"{name}_b{i}"][p] for i in range(layers + 1)]
    modules: list[torch.nn.Module] = []
    for weight, bias in zip(weights, biases, strict=True):
        layer = torch.nn.Linear(weight.shape[0], weight.shape[1], dtype=DOUBLE)
        with torch.no_grad():
            layer.weight.copy_(weight.T)
            layer.bias.copy_(bias)
        modules += [layer, torch.nn.Tanh()]
    return torch.nn.Sequential(*modules[:-1])


@pytest.mark.parametrize("hidden", [(8,), (8, 6), (8, 6, 7)])
def test_mlp_equals_torch_layers_on_the_flat_observation(hidden: tuple[int, ...]) -> None:
    market = random_market(1, assets=N, features=F)
    policy = MlpPolicy(PolicySpec("mlp", N, F, N + 1, hidden))
    params = stacked_params(policy)
    bar = torch.randint(0, 30, (P, K), generator=torch.Generator().manual_seed(2))
    observation = Observation(bar, accounts().reshape(P, K * A, N + 1).float())
    rows = flat(market, observation).double()  # [P, E, 1 + N + N * F]
    out = policy.forward(params, market.features[bar].double(), observation.account.double().view(P, K, A, N + 1), None)
    for p in range(P):
        actor = torch_tower(params, p, "actor", len(hidden))
        critic = torch_tower(params, p, "critic", len(hidden))
        torch.testing.assert_close(out.mean[p].reshape(K * A, N + 1), actor(rows[p]))
        torch.testing.assert_close(out.value[p].reshape(K * A, 1), critic(rows[p]))


def test_first_layer_of_the_mlp_is_initialised_orthogonally() -> None:
    weights = MlpPolicy(PolicySpec("mlp", N, F, N + 1, (8, 6))).init(torch.Generator().manual_seed(0), DOUBLE)
    first_layer = torch.cat([weights["actor_table_w"], weights["actor_own_w"]])
    torch.testing.assert_close(first_layer.T @ first_layer, 2 * torch.eye(8, dtype=DOUBLE))


def test_mlp_ignores_an_asset_without_features_and_holdings() -> None:
    """Features are zero while an asset is untradable, so that its weights have no effect."""
    policy = MlpPolicy(PolicySpec("mlp", N, F, N + 1, (8, 6)))
    params, features, account = stacked_params(policy), draw(P, K, N, F), accounts()
    features[:, :, 2], account[..., 3] = 0.0, 0.0
    tradable = torch.ones(P, K, N, dtype=torch.bool)
    tradable[..., 2] = False
    before = policy.forward(params, features, account, tradable)
    for tower in ("actor", "critic"):
        params[f"{tower}_table_w"][:, 2 * F : 3 * F] = 100.0
        params[f"{tower}_own_w"][:, 3] = 100.0
    after = policy.forward(params, features, account, tradable)
    assert torch.equal(before.mean, after.mean)
    assert torch.equal(before.value, after.value)


def equivariant(cash: bool = True, action: str = "softmax") -> EquivariantPolicy:
    return EquivariantPolicy(PolicySpec("equivariant", N, F, N + cash, (8, 6), action))


ACTION_KINDS = pytest.mark.parametrize(("cash", "action"), [(True, "softmax"), (True, "direct"), (False, "direct")])


@ACTION_KINDS
@pytest.mark.parametrize("hidden_assets", [(), (1, 4)])
def test_permuting_the_assets_permutes_their_scores(cash: bool, action: str, hidden_assets: tuple[int, ...]) -> None:
    policy = equivariant(cash, action)
    params, features, account = stacked_params(policy), draw(P, K, N, F), accounts()
    tradable = torch.ones(P, K, N, dtype=torch.bool)
    tradable[..., list(hidden_assets)] = False
    order = torch.tensor([3, 0, 4, 1, 2])
    before = policy.forward(params, features, account, tradable)
    permuted_account = torch.cat([account[..., :1], account[..., 1:][..., order]], -1)
    after = policy.forward(params, features[:, :, order], permuted_account, tradable[..., order])
    torch.testing.assert_close(after.mean[..., int(cash) :], before.mean[..., int(cash) :][..., order])
    torch.testing.assert_close(after.value, before.value)
    if cash:
        torch.testing.assert_close(after.mean[..., 0], before.mean[..., 0])
    assert (before.mean.diff(dim=-1).abs() > 1e-3).all(), "scores must differ for the test to be meaningful"


def test_mlp_is_not_permutation_equivariant() -> None:
    """Checks that the test above can fail."""
    policy = MlpPolicy(PolicySpec("mlp", N, F, N, (8, 6), "direct"))
    params, features, account = stacked_params(policy), draw(P, K, N, F), accounts()
    order = torch.tensor([3, 0, 4, 1, 2])
    before = policy.forward(params, features, account, None)
    permuted_account = torch.cat([account[..., :1], account[..., 1:][..., order]], -1)
    after = policy.forward(params, features[:, :, order], permuted_account, None)
    assert (after.mean - before.mean[..., order]).abs().max() > 0.1


@pytest.mark.parametrize("assets", [1, 3, 12])
@ACTION_KINDS
def test_equivariant_policy_accepts_any_number_of_assets(assets: int, cash: bool, action: str) -> None:
    policy = equivariant(cash, action)
    out = policy.forward(stacked_params(policy), draw(P, K, assets, F), accounts(assets), None)
    assert out.mean.shape == (P, K, A, assets + cash)
    assert out.value.shape == (P, K, A)
    assert all(torch.isfinite(part).all() for part in out)


def test_duplicating_every_asset_keeps_its_score() -> None:
    """Holdings are in units of 1/N and the context is a mean, so duplication does not change the inputs of an asset."""
    policy = equivariant()
    params, features, account = stacked_params(policy), draw(P, K, N, F), accounts()
    account[..., 0] = 0.0
    one = policy.forward(params, features, account, None)
    half_holdings = account[..., 1:].repeat_interleave(2, -1) / 2
    doubled = policy.forward(
        params, features.repeat_interleave(2, 2), torch.cat([account[..., :1], half_holdings], -1), None
    )
    torch.testing.assert_close(doubled.mean[..., 1:], one.mean[..., 1:].repeat_interleave(2, -1))
    torch.testing.assert_close(doubled.mean[..., 0], one.mean[..., 0])
    torch.testing.assert_close(doubled.value, one.value)


def test_features_of_an_untradable_asset_do_not_affect_other_scores() -> None:
    policy = equivariant()
    params, features, account = stacked_params(policy), draw(P, K, N, F), accounts()
    account[..., 3] = 0.0  # no holding
    tradable = torch.ones(P, K, N, dtype=torch.bool)
    tradable[..., 2] = False
    before = policy.forward(params, features, account, tradable)
    changed = features.clone()
    changed[:, :, 2] = 50.0
    after = policy.forward(params, changed, account, tradable)
    other_scores = [0, 1, 2, 4, 5]  # index 0 is cash
    assert torch.equal(after.mean[..., other_scores], before.mean[..., other_scores])
    assert torch.equal(after.value, before.value)
    unmasked = policy.forward(params, changed, account, None)
    assert (unmasked.mean[..., other_scores] - before.mean[..., other_scores]).abs().max() > 1e-3


def test_outputs_are_finite_without_tradable_assets() -> None:
    policy = equivariant()
    none_tradable = torch.zeros(P, K, N, dtype=torch.bool)
    out = policy.forward(stacked_params(policy), torch.zeros(P, K, N, F, dtype=DOUBLE), accounts(), none_tradable)
    assert all(torch.isfinite(part).all() for part in out)


@pytest.mark.parametrize("action", ["softmax", "direct"])
def test_outputs_match_the_documented_formula(action: str) -> None:
    """The formula of the class docstring, computed for one account."""
    policy = equivariant(action=action)
    params, features, account = stacked_params(policy), draw(P, K, N, F), accounts()
    out = policy.forward(params, features, account, None)
    for p, k, a in ((0, 0, 0), (1, 2, 1)):
        w = {name: value[p] for name, value in params.items()}
        inertia = w["inertia"][0] if action == "softmax" else 0.0
        codes = [torch.tanh(features[p, k, n] @ w["encode_w"] + w["encode_b"]) for n in range(N)]
        context = torch.stack(codes).mean(0)
        values = [torch.tanh(features[p, k, n] @ w["value_encode_w"] + w["value_encode_b"]) for n in range(N)]
        for n in range(N):
            held = N * account[p, k, a, 1 + n]
            inner = codes[n] @ w["code_w"] + context @ w["context_w"] + w["code_b"] + held * w["holding_w"]
            score = torch.tanh(inner) @ w["score_w"] + features[p, k, n] @ w["linear_w"]
            score = score + inertia * held.clamp(min=1e-3).log()
            torch.testing.assert_close(out.mean[p, k, a, 1 + n], score)
        cash = context @ w["cash_w"] + w["cash_b"][0] + inertia * (N * account[p, k, a, 0]).log()
        torch.testing.assert_close(out.mean[p, k, a, 0], cash)
        held_values = torch.stack([account[p, k, a, 1 + n] * values[n] for n in range(N)]).sum(0)
        mixed = held_values @ w["value_holding_w"]
        market = torch.stack(values).mean(0) @ w["value_context_w"] + w["value_b"]
        value = torch.tanh(market + mixed) @ w["value_w"] + w["value_out_b"][0]
        torch.testing.assert_close(out.value[p, k, a], value)
