"""A population of P members equals P single runs, in float64 over 20 updates, for both policies."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from finrl_pod.rl.training.learner import Learner, Metrics
from tests.markets import random_market
from tests.rl.small_learners import iteration_samples, small_env, small_learner, training_state

UPDATES = 20
MEMBERS = (0, 1, 2, 3)
SETTINGS: tuple[dict[str, float], ...] = (
    {"learning_rate": 1e-2, "gamma": 0.9, "clip_range": 0.1, "target_kl": 10.0},
    {"learning_rate": 2e-2, "gamma": 0.5, "clip_range": 0.2, "target_kl": 2e-3, "entropy_coefficient": 1e-3},
    {"learning_rate": 5e-3, "gae_lambda": 0.5, "clip_range": 0.05, "target_kl": 1e-4, "max_grad_norm": 0.1},
    {"learning_rate": 3e-3, "gamma": 0.99, "value_coefficient": 1.0, "target_kl": 10.0},
)
POLICIES = ("equivariant", "linear", "mlp")


def run(
    members: tuple[int, ...], nan_at: tuple[int, int] | None = None, **settings: Any
) -> tuple[Learner, list[Metrics]]:
    """Run 20 updates. nan_at: (member, iteration) after which one of the member's weights is set to NaN."""
    market = random_market(5, bars=60, gaps=0.1, starts={1: 20})
    chosen = settings.pop("hyperparameters", SETTINGS)
    learner = small_learner(
        members, env=small_env(members, market), hyperparameters=[chosen[m] for m in members], seed=4, **settings
    )
    metrics_log: list[Metrics] = []

    def record(learner: Learner, metrics: Metrics) -> None:
        metrics_log.append(metrics)
        if nan_at is not None and len(metrics_log) == nan_at[1] and nan_at[0] in members:
            learner.algorithm.parameters.flat[members.index(nan_at[0]), 0] = torch.nan

    learner.learn(UPDATES * iteration_samples(learner), callback=record)
    return learner, metrics_log


@cache
def single_run(member: int, policy: str) -> tuple[Learner, list[Metrics]]:
    return run((member,), policy=policy)


def assert_equals_single_run(
    batch: tuple[Learner, list[Metrics]], single: tuple[Learner, list[Metrics]], member: int
) -> None:
    p = MEMBERS.index(member)
    batched, other = training_state(batch[0], p), training_state(single[0])
    assert batched.keys() == other.keys()
    for name, value in other.items():
        assert_near(batched[name], value, name)
    for step, (many, one) in enumerate(zip(batch[1], single[1], strict=True)):
        for name in one:
            assert_near(many[name][p], one[name][0], f"{name} of update {step}")


def assert_near(one: torch.Tensor, other: torch.Tensor, label: str) -> None:
    assert torch.allclose(one, other, rtol=1e-9, atol=1e-9), f"{label}: {one} against {other}"


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_four_members_equal_four_single_runs(policy: str) -> None:
    batch = run(MEMBERS, policy=policy)
    max_steps = UPDATES * batch[0].config.epochs * batch[0].config.minibatches
    steps = batch[0].algorithm.optimiser.steps.tolist()
    assert steps[0] == steps[3] == max_steps
    assert all(UPDATES <= steps[p] < max_steps for p in (1, 2)), "target_kl must stop two of the members early"
    for member in MEMBERS:
        assert_equals_single_run(batch, single_run(member, policy), member)
    weights = batch[0].algorithm.parameters.flat
    assert all((weights[a] - weights[b]).abs().max() > 0.01 for a in MEMBERS for b in MEMBERS if a < b)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_diverging_member_does_not_affect_others(policy: str) -> None:
    batch = run(MEMBERS, nan_at=(2, 9), policy=policy)
    assert batch[0].alive == [True, True, False, True]
    assert [bool(torch.isfinite(m["policy_loss"][2])) for m in batch[1]] == [True] * 9 + [False] * 11
    for member in (0, 1, 3):
        assert_equals_single_run(batch, single_run(member, policy), member)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_member_with_non_finite_loss_keeps_its_parameters(policy: str) -> None:
    settings = [dict(each) for each in SETTINGS]
    settings[1]["value_coefficient"] = 1e308  # the loss or its gradient overflows at the first step
    learner, _ = run(MEMBERS, policy=policy, hyperparameters=settings)
    start = small_learner(MEMBERS, seed=4, policy=policy)
    assert learner.alive == [True, False, True, True]
    assert torch.equal(learner.algorithm.parameters.flat[1], start.algorithm.parameters.flat[1])
    assert not learner.algorithm.optimiser.first[1].any()
    assert learner.algorithm.optimiser.steps[1] == 0
    assert torch.isfinite(learner.algorithm.parameters.flat).all()


@pytest.mark.slow
def test_order_of_members_does_not_matter() -> None:
    order = (3, 0, 1)
    reordered, _ = run(order, policy="mlp")
    for p, member in enumerate(order):
        other = training_state(reordered, p)
        for name, value in training_state(single_run(member, "mlp")[0]).items():
            assert_near(other[name], value, name)
