"""The policy kernels against PPO's loss through autograd and Adam in torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from finrl_pod.native.prebuild import find_compiler
from finrl_pod.rl.algorithms.ppo import PPO
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.run import MandateConfig, PPOConfig
from finrl_pod.types import Tensor
from tests.markets import random_market
from tests.rl.small_learners import small_env

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")


def make_learner(
    group: int,
    members: int,
    hidden: tuple[int, ...],
    kind: str,
    assets: int = 5,
    policy: str = "mlp",
    gaps: bool = False,
) -> Learner:
    mandate = None
    if kind == "mandate":
        kind, mandate = "portfolio", MandateConfig(trade_speed=1.0)
    env = small_env(
        mandate=mandate,
        market=random_market(0, bars=80, assets=assets, features=3, gaps=0.2 if gaps else 0.0),
        kind=kind,
        envs=2 * group,
        group=group,
        members=range(members),
        dtype=torch.float32,
    )
    agent = PPOConfig(
        policy=policy,  # type: ignore[arg-type]
        hidden=hidden,
        horizon=8,
        epochs=2,
        minibatches=2,
        entropy_coefficient=0.02,
        clip_range=0.05,
        learning_rate=0.01,
    )
    return Learner(
        env,
        agent,
        hyperparameters=[{"clip_range": 0.02 + 0.05 * p, "value_coefficient": 0.5 + p} for p in range(members)],
    )


def training_state(ppo: PPO) -> list[Tensor]:
    optimiser = ppo.optimiser
    return [x.clone() for x in (ppo.parameters.flat, optimiser.first, optimiser.second, optimiser.steps, ppo.alive)]


def restore_state(ppo: PPO, saved: Sequence[Tensor]) -> None:
    optimiser = ppo.optimiser
    for target, x in zip(
        (ppo.parameters.flat, optimiser.first, optimiser.second, optimiser.steps), saved, strict=False
    ):
        target.copy_(x)
    ppo.alive = saved[-1].clone()


def compare_minibatches(ppo: PPO, monkeypatch: pytest.MonkeyPatch) -> list[list[Tensor]]:
    """Patch `_minibatch` to run autograd and kernel from the same state and compare results and new states."""
    states: list[list[Tensor]] = []
    minibatch, kernel = type(ppo)._minibatch, ppo._kernel
    assert kernel is not None

    def run_both(*arguments: Any) -> Tensor:
        before = training_state(ppo)
        ppo._kernel = None
        plain = minibatch(ppo, *arguments)
        expected = training_state(ppo)
        restore_state(ppo, before)
        ppo._kernel = kernel
        metrics = minibatch(ppo, *arguments)
        actual = training_state(ppo)
        torch.testing.assert_close(metrics, plain, rtol=1e-4, atol=1e-5, equal_nan=True)
        for name, x, y in zip(("weights", "first", "second"), actual, expected, strict=False):
            assert torch.equal(x.isnan(), y.isnan())
            x, y = x.nan_to_num(), y.nan_to_num()
            scale = y.abs().amax(1, keepdim=True) + 1e-30
            # Adam moves a weight with a tiny gradient by its sign, which rounding may flip.
            torch.testing.assert_close(x / scale, y / scale, rtol=0, atol=2e-3 if name == "weights" else 4e-5)
            assert (x - y).abs().median() <= 1e-6 * scale.max(), name
        assert torch.equal(actual[3], expected[3]), "steps"
        assert torch.equal(actual[4], expected[4]), "alive"
        states.append(actual)
        return metrics

    monkeypatch.setattr(ppo, "_minibatch", run_both)
    return states


@pytest.mark.slow
@pytest.mark.parametrize("gaps", [False, True], ids=["all tradable", "gaps"])
@pytest.mark.parametrize("kind", ["portfolio", "mandate", "stock_trading"])
@pytest.mark.parametrize(
    ("group", "members", "hidden"),
    [(1, 1, (8,)), (4, 3, (16, 10)), (70, 1, (8, 8, 24)), (33, 2, (64, 64)), (2, 8, (1, 5))],
)
def test_mlp_steps_match_autograd_and_adam(
    group: int, members: int, hidden: tuple[int, ...], kind: str, gaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make_learner(group, members, hidden, kind, gaps=gaps)
    states = compare_minibatches(learner.algorithm, monkeypatch)
    learner.learn(3 * 8 * 2 * group)
    assert len(states) >= 6
    assert not torch.equal(states[0][0], states[-1][0])


@pytest.mark.slow
@pytest.mark.parametrize("gaps", [False, True], ids=["all tradable", "gaps"])
@pytest.mark.parametrize("kind", ["portfolio", "mandate", "stock_trading"])
@pytest.mark.parametrize(
    ("group", "members", "hidden"), [(1, 1, (8,)), (4, 3, (16, 8)), (70, 1, (32, 32)), (3, 8, (8, 24))]
)
def test_equivariant_steps_match_autograd_and_adam(
    group: int, members: int, hidden: tuple[int, ...], kind: str, gaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make_learner(group, members, hidden, kind, policy="equivariant", gaps=gaps)
    assert (learner.algorithm.tradable is not None) == gaps
    states = compare_minibatches(learner.algorithm, monkeypatch)
    learner.learn(3 * 8 * 2 * group)
    assert len(states) >= 6
    moved = (states[-1][0] - states[0][0]).abs().amin(0)
    assert float((moved == 0).float().mean()) < 0.02, "almost every weight must have a gradient"


@pytest.mark.slow
@pytest.mark.parametrize("members", [1, 8])
def test_single_asset(members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one asset the actor tower has one output, for which the kernel has a separate branch."""
    learner = make_learner(3, members, (8, 4), "stock_trading", assets=1)
    states = compare_minibatches(learner.algorithm, monkeypatch)
    learner.learn(3 * 8 * 6)
    assert len(states) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("members", [3, 8])  # members split over threads, and one thread per member
def test_members_stop_as_in_torch(members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member with a large KL skips steps, one with NaN parameters stops, large gradients are clipped."""
    learner = make_learner(4, members, (16, 16), "portfolio")
    ppo = learner.algorithm
    ppo.settings["target_kl"][0], ppo.settings["max_grad_norm"][1] = 1e-9, 1e-3
    ppo.parameters.flat[2, 7] = torch.nan
    states = compare_minibatches(ppo, monkeypatch)
    learner.learn(8 * 8)
    steps = states[-1][3]
    assert learner.alive == [p != 2 for p in range(members)]
    assert steps[2] == 0
    assert 1 <= steps[0] < steps[1] == len(states)


@pytest.mark.parametrize("kind", ["portfolio", "mandate", "stock_trading"])
@pytest.mark.parametrize("policy", ["mlp", "equivariant"])
@pytest.mark.parametrize(("group", "members"), [(1, 1), (4, 3), (70, 2)])
def test_outputs_and_samples_match_the_policy(group: int, members: int, policy: str, kind: str) -> None:
    learner = make_learner(group, members, (16, 8), kind, policy=policy, gaps=True)
    ppo, (bar, account) = learner.algorithm, learner.env.reset(0)
    assert ppo._kernel is not None
    features, tradable = ppo.inputs.of_actor({}, bar)
    account = torch.rand(members, 2, group, account.shape[-1], generator=torch.Generator().manual_seed(1))
    out = ppo.policy.forward(ppo.parameters.views, features, account, tradable)
    tolerances = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(ppo._kernel.mean(bar, account), out.mean.detach(), **tolerances)
    torch.testing.assert_close(ppo._kernel.value(bar, account), out.value.detach(), **tolerances)
    noise = ppo.noise((2, group, learner.env.action_size))[0]
    ppo.parameters.views["log_std"].data.uniform_(-1, 1, generator=torch.Generator().manual_seed(2))
    sampled = ppo.explore(bar, account, noise)
    ppo._kernel = None
    for drawn, plain in zip(sampled, ppo.explore(bar, account, noise), strict=True):
        torch.testing.assert_close(drawn, plain, rtol=1e-5, atol=1e-5)


def test_float64_and_unsupported_widths_use_autograd() -> None:
    env = small_env(market=random_market(0, bars=80))
    assert Learner(env, PPOConfig(policy="mlp", horizon=4), dtype=torch.float64).algorithm._kernel is None
    assert Learner(env, PPOConfig(policy="equivariant", hidden=(12,), horizon=4)).algorithm._kernel is None
