"""The fused gradient against autograd through PPO's own loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from finrl_pod.config import AgentConfig
from finrl_pod.native.library import find_compiler
from finrl_pod.rl.learner import Learner
from finrl_pod.types import Tensor
from tests.markets import random_market
from tests.rl.learners import small_env

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")


def learner(group: int, members: int, hidden: tuple[int, ...], kind: str) -> Learner:
    env = small_env(
        market=random_market(0, bars=80, assets=5, features=3),
        kind=kind,
        envs=2 * group,
        group=group,
        members=range(members),
        dtype=torch.float32,
    )
    agent = AgentConfig(
        policy="mlp", hidden=hidden, horizon=8, epochs=2, minibatches=2, entropy=0.02, clip=0.05, learning_rate=0.01
    )
    return Learner(
        env, agent, hyperparameters=[{"clip": 0.02 + 0.05 * p, "value_weight": 0.5 + p} for p in range(members)]
    )


@pytest.mark.parametrize("kind", ["portfolio", "stock_trading"])
@pytest.mark.parametrize(
    ("group", "members", "hidden"), [(1, 1, (8,)), (4, 3, (16, 10)), (70, 1, (8, 8, 24)), (33, 2, (64, 64))]
)
def test_gradient_is_that_of_autograd(
    group: int, members: int, hidden: tuple[int, ...], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = learner(group, members, hidden, kind)
    ppo = subject.ppo
    assert ppo._fused is not None
    seen = 0

    def compare(batch: Any) -> tuple[Tensor, Tensor]:
        nonlocal seen
        gradient, figures = type(ppo)._fused_gradient(ppo, batch)
        plain, plain_figures = ppo._gradient(batch)
        scale = plain.abs().amax(1, keepdim=True)
        torch.testing.assert_close(gradient / scale, plain / scale, rtol=0, atol=2e-5)
        torch.testing.assert_close(figures, plain_figures, rtol=1e-4, atol=1e-5)
        seen += 1
        return gradient, figures

    monkeypatch.setattr(ppo, "_fused_gradient", compare)
    subject.learn(3 * 8 * 2 * group)
    assert seen >= 6


def test_towers_say_what_the_policy_says() -> None:
    subject = learner(4, 2, (16, 10), "portfolio")
    ppo, (day, account) = subject.ppo, subject.env.reset(0)
    assert ppo._fused is not None
    features, _ = ppo.rows(day)
    account = account.view(2, 2, 4, -1)
    out = ppo.policy.forward(ppo.parameters.views, features, account, None)
    torch.testing.assert_close(ppo._fused.forward("actor", features, account), out.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        ppo._fused.forward("critic", features, account).squeeze(-1), out.value, rtol=1e-5, atol=1e-6
    )


def test_float64_and_other_policies_take_autograd() -> None:
    env = small_env(market=random_market(0, bars=80))
    assert Learner(env, AgentConfig(policy="mlp", horizon=4), dtype=torch.float64).ppo._fused is None
    assert Learner(env, AgentConfig(policy="equivariant", horizon=4)).ppo._fused is None
