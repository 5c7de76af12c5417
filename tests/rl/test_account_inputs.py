"""Networks on accounts with extras: every algorithm trains, and the number and order of the assets do not matter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.rl.networks.inputs import ModelInput
from finrl_pod.rl.networks.layers import split_extras
from finrl_pod.rl.networks.off_policy_networks import EquivariantCritic, EquivariantQ, make_actor_network
from finrl_pod.rl.networks.policies import PolicySpec, make_policy
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_registry import ALGORITHMS
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from tests.markets import random_market
from tests.rl.all_algorithms import NAMES, small_config

N, F, BLOCKS, NUMBERS = 4, 3, 2, 3
OWN = 1 + N + BLOCKS * N + NUMBERS
DOUBLE = torch.float64


def spec(kind: str, action: str = "softmax", size: int = N + 1) -> PolicySpec:
    return PolicySpec(kind, N, F, size, (8, 6), action, extra_per_asset=BLOCKS, extra_per_account=NUMBERS)


def random_weights(made: Any) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        name: (value + torch.randn(value.shape, generator=generator, dtype=DOUBLE)).unsqueeze(0)
        for name, value in made.init(generator, DOUBLE).items()
    }


def inputs(order: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Features [1, 2, N, F] and accounts [1, 2, 3, own] with the assets in this order."""
    generator = torch.Generator().manual_seed(4)
    features = torch.randn(1, 2, N, F, generator=generator, dtype=DOUBLE)
    cash, numbers = (torch.rand(1, 2, 3, n, generator=generator, dtype=DOUBLE) for n in (1, NUMBERS))
    rows = torch.rand(1, 2, 3, 1 + BLOCKS, N, generator=generator, dtype=DOUBLE)[..., order]
    return features[:, :, order], torch.cat([cash, rows.flatten(-2), numbers], -1)


def test_extras_are_split_as_they_are_joined() -> None:
    account = torch.arange(OWN, dtype=DOUBLE).view(1, 1, 1, -1)
    blocks, numbers = split_extras(spec("mlp"), account, N)
    assert blocks[0, 0, 0].tolist() == [[5, 6, 7, 8], [9, 10, 11, 12]]
    assert numbers[0, 0, 0].tolist() == [13, 14, 15]
    assert spec("mlp").own == OWN


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["equivariant", "linear"])
def test_the_order_of_the_assets_does_not_matter(kind: str) -> None:
    order = [2, 0, 3, 1]
    policy = make_policy(spec(kind))
    params = random_weights(policy)
    one, other = (policy.forward(params, *inputs(o), None) for o in ([0, 1, 2, 3], order))
    scores = one.mean[..., [0, *(1 + i for i in order)]]
    torch.testing.assert_close(other.mean, scores)
    torch.testing.assert_close(other.value, one.value)
    actor = make_actor_network(spec(kind), 1)
    params = random_weights(actor)
    heads = [
        actor.forward(params, ModelInput(account, features))[0]
        for features, account in map(inputs, ([0, 1, 2, 3], order))
    ]
    torch.testing.assert_close(heads[1], heads[0][..., [0, *(1 + i for i in order)]])


def test_values_depend_on_every_extra() -> None:
    features, account = inputs([0, 1, 2, 3])
    policy, critic, q = make_policy(spec("equivariant")), EquivariantCritic(spec("equivariant")), None
    q = EquivariantQ(spec("equivariant", "discrete", 2 * N + 1), dueling=False)
    effect = torch.full((1, 2, 3, N), 0.2, dtype=DOUBLE)
    weights = [random_weights(made) for made in (policy, critic, q)]

    def values(account: torch.Tensor) -> list[torch.Tensor]:
        return [
            policy.value(weights[0], features, account, None),
            critic.forward(weights[1], ModelInput(account, features), effect),
            q.forward(weights[2], ModelInput(account, features)),
        ]

    before = values(account)
    for place in range(1 + N, OWN):
        changed = account.clone()
        changed[..., place] += 0.5
        for one, other in zip(before, values(changed), strict=True):
            assert (one - other).abs().max() > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("policy", ["equivariant", "linear", "mlp"])
def test_every_algorithm_trains_on_accounts_with_extras(name: str, policy: str) -> None:
    discrete = ALGORITHMS[name].actions == "discrete"
    if policy == "linear" and discrete:
        pytest.skip("there are no linear Q-networks")
    rules: dict[str, Any] = {"kind": "discrete"} if discrete else {"delay": 2}
    config = EnvironmentConfig(window=8, envs=6, group=3, reward="differential_sharpe", **rules)
    mandate = MandateConfig(max_turnover=4.0)
    market = random_market(5, bars=60, leak=True)
    env = make_env(market, config, members=(0, 1), dtype=DOUBLE, mandate=mandate)
    assert tuple(env.extras) == (0 if discrete else 1, 3)
    learner = Learner(env, small_config(name, policy=policy), seed=1, dtype=DOUBLE)
    before = {key: value.clone() for key, value in learner.algorithm.weights().items()}
    learner.learn(4 * learner.iteration_samples)
    after = learner.algorithm.weights()
    assert all(torch.isfinite(value).all() for value in after.values())
    assert any(not torch.equal(before[key], after[key]) for key in after if "extra" in key or policy == "mlp")
