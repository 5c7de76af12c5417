"""The two policies: the MLP is the plain one, the equivariant one knows neither order nor number of assets."""

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


def stacked(policy: EquivariantPolicy | MlpPolicy) -> dict[str, torch.Tensor]:
    each = [policy.init(torch.Generator().manual_seed(p), DOUBLE) for p in range(P)]
    params = {name: torch.stack([member[name] for member in each]) for name in each[0]}
    return {name: value + 0.3 * draw(*value.shape, seed=i) for i, (name, value) in enumerate(params.items())}


def accounts(assets: int = N) -> torch.Tensor:
    return torch.softmax(draw(P, K, A, assets + 1, seed=1), -1)


def plain_tower(params: Params, p: int, name: str, layers: int) -> torch.nn.Sequential:
    """torch's own layers with member p's weights, on the flat observation: account first, then asset by asset."""
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
def test_the_mlp_is_plain_layers_on_the_flat_observation(hidden: tuple[int, ...]) -> None:
    market = random_market(1, assets=N, features=F)
    policy = MlpPolicy(PolicySpec("mlp", N, F, N + 1, hidden))
    params = stacked(policy)
    day = torch.randint(0, 30, (P, K), generator=torch.Generator().manual_seed(2))
    observation = Observation(day, accounts().reshape(P, K * A, N + 1).float())
    rows = flat(market, observation).double()  # [P, E, 1 + N + N * F]
    out = policy.forward(params, market.features[day].double(), observation.account.double().view(P, K, A, N + 1), None)
    for p in range(P):
        actor = plain_tower(params, p, "actor", len(hidden))
        critic = plain_tower(params, p, "critic", len(hidden))
        torch.testing.assert_close(out.mean[p].reshape(K * A, N + 1), actor(rows[p]))
        torch.testing.assert_close(out.value[p].reshape(K * A, 1), critic(rows[p]))


def test_the_mlps_first_layer_starts_as_one_orthogonal_matrix() -> None:
    weights = MlpPolicy(PolicySpec("mlp", N, F, N + 1, (8, 6))).init(torch.Generator().manual_seed(0), DOUBLE)
    whole = torch.cat([weights["actor_table_w"], weights["actor_own_w"]])
    torch.testing.assert_close(whole.T @ whole, 2 * torch.eye(8, dtype=DOUBLE))


def test_an_mlp_cannot_learn_from_an_asset_without_features_and_holdings() -> None:
    """The market's features are zero where nothing is tradable: then no weight of that asset has any effect."""
    policy = MlpPolicy(PolicySpec("mlp", N, F, N + 1, (8, 6)))
    params, features, account = stacked(policy), draw(P, K, N, F), accounts()
    features[:, :, 2], account[..., 3] = 0.0, 0.0
    known = torch.ones(P, K, N, dtype=torch.bool)
    known[..., 2] = False
    before = policy.forward(params, features, account, known)
    for tower in ("actor", "critic"):
        params[f"{tower}_table_w"][:, 2 * F : 3 * F] = 100.0
        params[f"{tower}_own_w"][:, 3] = 100.0
    after = policy.forward(params, features, account, known)
    assert torch.equal(before.mean, after.mean)
    assert torch.equal(before.value, after.value)


def equivariant(cash: bool = True, action: str = "softmax") -> EquivariantPolicy:
    return EquivariantPolicy(PolicySpec("equivariant", N, F, N + cash, (8, 6), action))


KINDS = pytest.mark.parametrize(("cash", "action"), [(True, "softmax"), (True, "direct"), (False, "direct")])


@KINDS
@pytest.mark.parametrize("hidden_assets", [(), (1, 4)])
def test_permuting_the_assets_permutes_their_scores(cash: bool, action: str, hidden_assets: tuple[int, ...]) -> None:
    policy = equivariant(cash, action)
    params, features, account = stacked(policy), draw(P, K, N, F), accounts()
    known = torch.ones(P, K, N, dtype=torch.bool)
    known[..., list(hidden_assets)] = False
    order = torch.tensor([3, 0, 4, 1, 2])
    before = policy.forward(params, features, account, known)
    own = torch.cat([account[..., :1], account[..., 1:][..., order]], -1)
    after = policy.forward(params, features[:, :, order], own, known[..., order])
    torch.testing.assert_close(after.mean[..., int(cash) :], before.mean[..., int(cash) :][..., order])
    torch.testing.assert_close(after.value, before.value)
    if cash:
        torch.testing.assert_close(after.mean[..., 0], before.mean[..., 0])
    assert (before.mean.diff(dim=-1).abs() > 1e-3).all(), "scores that are all alike would prove nothing"


def test_a_permutation_moves_an_mlps_scores_otherwise() -> None:
    """So the test above can fail."""
    policy = MlpPolicy(PolicySpec("mlp", N, F, N, (8, 6), "direct"))
    params, features, account = stacked(policy), draw(P, K, N, F), accounts()
    order = torch.tensor([3, 0, 4, 1, 2])
    before = policy.forward(params, features, account, None)
    own = torch.cat([account[..., :1], account[..., 1:][..., order]], -1)
    after = policy.forward(params, features[:, :, order], own, None)
    assert (after.mean - before.mean[..., order]).abs().max() > 0.1


@pytest.mark.parametrize("assets", [1, 3, 12])
@KINDS
def test_the_same_weights_run_with_another_number_of_assets(assets: int, cash: bool, action: str) -> None:
    policy = equivariant(cash, action)
    out = policy.forward(stacked(policy), draw(P, K, assets, F), accounts(assets), None)
    assert out.mean.shape == (P, K, A, assets + cash)
    assert out.value.shape == (P, K, A)
    assert all(torch.isfinite(part).all() for part in out)


def test_two_copies_of_every_asset_score_as_one_does() -> None:
    """Holdings count in units of 1/N and the context is a mean: a doubled market looks the same to each asset."""
    policy = equivariant()
    params, features, account = stacked(policy), draw(P, K, N, F), accounts()
    account[..., 0] = 0.0
    one = policy.forward(params, features, account, None)
    halved = account[..., 1:].repeat_interleave(2, -1) / 2
    two = policy.forward(params, features.repeat_interleave(2, 2), torch.cat([account[..., :1], halved], -1), None)
    torch.testing.assert_close(two.mean[..., 1:], one.mean[..., 1:].repeat_interleave(2, -1))
    torch.testing.assert_close(two.mean[..., 0], one.mean[..., 0])
    torch.testing.assert_close(two.value, one.value)


def test_features_of_an_untradable_asset_change_no_other_score() -> None:
    policy = equivariant()
    params, features, account = stacked(policy), draw(P, K, N, F), accounts()
    account[..., 3] = 0.0  # nothing is held of it
    known = torch.ones(P, K, N, dtype=torch.bool)
    known[..., 2] = False
    before = policy.forward(params, features, account, known)
    changed = features.clone()
    changed[:, :, 2] = 50.0
    after = policy.forward(params, changed, account, known)
    others = [0, 1, 2, 4, 5]  # cash first
    assert torch.equal(after.mean[..., others], before.mean[..., others])
    assert torch.equal(after.value, before.value)
    seen = policy.forward(params, changed, account, None)
    assert (seen.mean[..., others] - before.mean[..., others]).abs().max() > 1e-3


def test_a_bar_without_any_tradable_asset_gives_numbers() -> None:
    policy = equivariant()
    nothing = torch.zeros(P, K, N, dtype=torch.bool)
    out = policy.forward(stacked(policy), torch.zeros(P, K, N, F, dtype=DOUBLE), accounts(), nothing)
    assert all(torch.isfinite(part).all() for part in out)


@pytest.mark.parametrize("action", ["softmax", "direct"])
def test_scores_follow_their_formula(action: str) -> None:
    """The docstring's formula, written out for one account with plain products."""
    policy = equivariant(action=action)
    params, features, account = stacked(policy), draw(P, K, N, F), accounts()
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
