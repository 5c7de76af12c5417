"""PPO's update against an independent implementation with torch.distributions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from finrl_pod.errors import ConfigError
from finrl_pod.rl.algorithms.ppo import MEMBER_SETTINGS, PPO
from finrl_pod.rl.experience import Rollout, RolloutCollector
from finrl_pod.rl.training.learner import Learner
from tests.markets import random_market
from tests.rl.reference_gae import Trajectory, reference_gae
from tests.rl.small_learners import PPO_METRICS, ruin_threshold, small_env, small_learner

SETTINGS = {"gamma": 0.9, "gae_lambda": 0.8, "clip_range": 0.1, "entropy_coefficient": 0.02, "value_coefficient": 0.7}
NO_LIMIT: dict[str, Any] = {"max_grad_norm": 1e9, "target_kl": 1e9}


@dataclass
class Steps:
    """Inputs of the gradient steps of an update."""

    weights: list[dict[str, torch.Tensor]] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)
    rates: list[torch.Tensor] = field(default_factory=list)
    moves: list[torch.Tensor] = field(default_factory=list)


def record_steps(ppo: PPO, monkeypatch: pytest.MonkeyPatch) -> Steps:
    steps, reference = Steps(), ppo.optimiser.step

    def step(zero_values: torch.Tensor, gradient: torch.Tensor, rate: torch.Tensor, moves: torch.Tensor) -> None:
        steps.weights.append(ppo.parameters.member(0))
        steps.gradients.append(gradient.clone())
        steps.rates.append(rate.clone())
        steps.moves.append(moves.clone())
        reference(zero_values, gradient, rate, moves)

    monkeypatch.setattr(ppo.optimiser, "step", step)
    return steps


def learner_with_rollouts(rollouts: int = 1, **settings: Any) -> tuple[Learner, list[Rollout]]:
    """A learner and rollouts with terminations, truncations, and assets that are listed and delisted."""
    env = small_env(market=random_market(2, gaps=0.1, starts={1: 12}), cost_bps=4000.0)
    settings = {"horizon": 8, "epochs": 3, "minibatches": 1, **SETTINGS, **NO_LIMIT, **settings}
    learner = small_learner(env=env, **settings)
    collector, shape = RolloutCollector(env, 0), (env.groups, env.accounts, env.action_size)
    with ruin_threshold(0.65):
        parts = [collector.collect(learner.algorithm.explore, learner.algorithm.noise(shape)) for _ in range(rollouts)]
    assert all(part.terminated.any() and part.truncated.any() for part in parts)
    return learner, parts


class TradableNormals(NamedTuple):
    """Independent normals of the scores; masked ones do not contribute."""

    normal: Any
    valid: torch.Tensor

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        return (self.normal.log_prob(action) * self.valid).sum(-1)

    def entropy(self) -> torch.Tensor:
        return (self.normal.entropy() * self.valid).sum(-1)


class ReferencePPO:
    """The loss of the PPO paper over all samples of a rollout."""

    def __init__(self, ppo: PPO, rollout: Rollout, baseline: bool, reward_std: torch.Tensor | None = None) -> None:
        self.ppo, self.rollout = ppo, rollout
        _, _, groups, accounts = rollout.reward.shape
        values, next_values = ppo._values(rollout)  # tested in test_rollout
        self.reward_std = rollout.reward.std() if reward_std is None else reward_std
        trajectory = Trajectory(
            *(
                x.flatten(2)
                for x in (
                    rollout.reward / self.reward_std,
                    values,
                    next_values,
                    rollout.terminated,
                    rollout.truncated,
                )
            )
        )
        gamma, gae_lambda = (float(ppo.settings[name][0]) for name in ("gamma", "gae_lambda"))
        advantages = [reference_gae(trajectory, 0, e, gamma, gae_lambda) for e in range(groups * accounts)]
        advantage = torch.tensor(advantages, dtype=torch.float64).T.reshape(rollout.reward.shape)
        self.values, self.target = values, advantage + values
        if baseline:
            advantage = advantage - advantage.mean(-1, keepdim=True)
        self.advantage = (advantage - advantage.mean()) / advantage.std()

    def distribution(self, weights: dict[str, torch.Tensor]) -> tuple[Any, torch.Tensor]:
        """Distribution of the scores of all samples, and their values."""
        horizon, _, groups, accounts = self.rollout.reward.shape
        features, tradable = self.ppo.inputs.of_actor({}, self.rollout.bar.reshape(1, -1))
        account = self.rollout.account.reshape(1, horizon * groups, accounts, -1)
        batched = {name: value.unsqueeze(0) for name, value in weights.items()}
        out = self.ppo.policy.forward(batched, features, account, tradable)
        mean = out.mean.view(self.rollout.action.shape)
        std = weights["log_std"].exp().expand_as(mean)
        valid = torch.ones(1, horizon * groups, self.rollout.action.shape[-1]).bool()
        if tradable is not None:
            valid[..., -tradable.shape[-1] :] = tradable
        valid = valid.view(horizon, 1, groups, 1, -1).expand_as(mean)
        return TradableNormals(Normal(mean, std), valid), out.value.view(self.rollout.reward.shape)

    def terms(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        distribution, value = self.distribution(weights)
        ratio = torch.exp(distribution.log_prob(self.rollout.action) - self.rollout.log_probability)
        clip = float(self.ppo.settings["clip_range"][0])
        surrogate = torch.min(ratio * self.advantage, torch.clamp(ratio, 1 - clip, 1 + clip) * self.advantage)
        return {
            "policy_loss": -surrogate.mean(),
            "value_loss": ((value - self.target) ** 2).mean(),
            "entropy": distribution.entropy().mean(),
            "approx_kl": (ratio - 1 - ratio.log()).mean(),
            "clip_fraction": ((ratio < 1 - clip) | (ratio > 1 + clip)).double().mean(),
        }

    def gradient(self, weights: dict[str, torch.Tensor]) -> torch.Tensor:
        leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
        terms, settings = self.terms(leaves), self.ppo.settings
        loss = terms["policy_loss"] + settings["value_coefficient"][0] * terms["value_loss"]
        loss = loss - settings["entropy_coefficient"][0] * terms["entropy"]
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(leaves.values()))])


@pytest.mark.slow
@pytest.mark.parametrize("chunked", [False, True], ids=["one pass", "in chunks"])
@pytest.mark.parametrize("baseline", [True, False], ids=["group baseline", "no baseline"])
@pytest.mark.parametrize("policy", ["equivariant", "linear", "mlp"])
def test_gradients_match_the_reference(
    policy: str, baseline: bool, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three full-batch epochs: ratios are 1 in the first and partly clipped in the others."""
    learner, (rollout,) = learner_with_rollouts(policy=policy, group_baseline=baseline, learning_rate=0.03)
    if chunked:  # so wide that every chunk holds one item
        monkeypatch.setattr(learner.algorithm.policy, "width", 10**12, raising=False)
    steps, reference = record_steps(learner.algorithm, monkeypatch), ReferencePPO(learner.algorithm, rollout, baseline)
    metrics = learner.algorithm.update(rollout)
    assert len(steps.gradients) == 3
    for weights, gradient in zip(steps.weights, steps.gradients, strict=True):
        torch.testing.assert_close(gradient[0], reference.gradient(weights), rtol=1e-6, atol=1e-8)
    epochs = [{name: float(term) for name, term in reference.terms(weights).items()} for weights in steps.weights]
    assert epochs[0]["clip_fraction"] == 0
    assert all(0.1 < terms["clip_fraction"] < 0.9 for terms in epochs[1:])
    for name in ("policy_loss", "value_loss", "approx_kl", "clip_fraction"):
        mean = sum(terms[name] for terms in epochs) / 3
        assert float(metrics[name]) == pytest.approx(mean, rel=1e-6, abs=1e-8), name
    norms = [float(gradient.norm()) for gradient in steps.gradients]
    assert float(metrics["grad_norm"]) == pytest.approx(sum(norms) / 3)
    after = reference.distribution(learner.algorithm.parameters.member(0))[0]
    assert float(metrics["entropy"]) == pytest.approx(float(after.entropy().mean()))
    unexplained = float((reference.target - reference.values).var() / reference.target.var())
    assert float(metrics["explained_variance"]) == pytest.approx(1 - unexplained)
    assert float(metrics["reward"]) == pytest.approx(float(rollout.reward.mean()))
    assert set(metrics) == PPO_METRICS


def test_group_baseline_changes_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that the test above can distinguish the two settings."""
    learner, (rollout,) = learner_with_rollouts()
    weights = learner.algorithm.parameters.member(0)
    one, other = (ReferencePPO(learner.algorithm, rollout, baseline).gradient(weights) for baseline in (True, False))
    assert (one - other).abs().max() > 1e-3


def test_group_baseline_is_ignored_for_groups_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    env = small_env(envs=4, group=1)
    learner = small_learner(env=env, minibatches=1, epochs=1, horizon=8, **NO_LIMIT)
    rollout = RolloutCollector(env, 0).collect(
        learner.algorithm.explore, learner.algorithm.noise((4, 1, env.action_size))
    )
    steps, reference = (
        record_steps(learner.algorithm, monkeypatch),
        ReferencePPO(learner.algorithm, rollout, baseline=False),
    )
    learner.algorithm.update(rollout)
    torch.testing.assert_close(steps.gradients[0][0], reference.gradient(steps.weights[0]), rtol=1e-6, atol=1e-8)


def test_reward_scale_is_fixed_by_the_first_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, (first, second) = learner_with_rollouts(rollouts=2, epochs=1)
    steps, std = record_steps(learner.algorithm, monkeypatch), first.reward.std()
    learner.algorithm.update(first)
    reference = ReferencePPO(learner.algorithm, second, baseline=True, reward_std=std)
    learner.algorithm.update(second)
    torch.testing.assert_close(steps.gradients[1][0], reference.gradient(steps.weights[1]), rtol=1e-6, atol=1e-8)
    assert float(learner.algorithm.reward_scale[0]) == pytest.approx(1 / float(std))


def test_minibatches_use_every_item_once_per_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a negligible learning rate, the value gradients of an epoch average to the full-batch gradient."""
    learner, (rollout,) = learner_with_rollouts(
        minibatches=4, epochs=2, learning_rate=1e-300, entropy_coefficient=0.0, group_baseline=False
    )
    steps, reference = (
        record_steps(learner.algorithm, monkeypatch),
        ReferencePPO(learner.algorithm, rollout, baseline=False),
    )
    learner.algorithm.update(rollout)
    assert len(steps.gradients) == 8
    expected = value_part(learner, reference.gradient(steps.weights[0]))
    for epoch in (steps.gradients[:4], steps.gradients[4:]):
        mean = torch.stack([value_part(learner, gradient[0]) for gradient in epoch]).mean(0)
        torch.testing.assert_close(mean, expected, rtol=1e-6, atol=1e-9)
    assert not torch.equal(steps.gradients[0], steps.gradients[4])


def value_part(learner: Learner, gradient: torch.Tensor) -> torch.Tensor:
    """Elements of a gradient [D] that belong to value weights, which do not depend on advantages."""
    sizes = [int(torch.Size(shape).numel()) for shape in learner.algorithm.parameters.shapes.values()]
    chunks = zip(learner.algorithm.parameters.shapes, torch.split(gradient, sizes), strict=True)
    return torch.cat([chunk for name, chunk in chunks if name.startswith("value")])


def test_gradients_are_clipped_and_the_unclipped_norm_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, (rollout,) = learner_with_rollouts(epochs=1, max_grad_norm=0.01)
    steps, reference = (
        record_steps(learner.algorithm, monkeypatch),
        ReferencePPO(learner.algorithm, rollout, baseline=True),
    )
    metrics = learner.algorithm.update(rollout)
    assert float(steps.gradients[0].norm()) == pytest.approx(0.01)
    assert float(metrics["grad_norm"]) == pytest.approx(float(reference.gradient(steps.weights[0]).norm()))


def test_target_kl_stops_the_remaining_minibatches(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, (rollout,) = learner_with_rollouts(epochs=3, minibatches=2, learning_rate=0.05, target_kl=0.01)
    steps, reference = (
        record_steps(learner.algorithm, monkeypatch),
        ReferencePPO(learner.algorithm, rollout, baseline=True),
    )
    metrics = learner.algorithm.update(rollout)
    moved = [bool(move) for move in steps.moves]
    assert moved == sorted(moved, reverse=True), "a stopped member does not resume within the iteration"
    assert 1 <= sum(moved) < 6
    assert float(reference.terms(learner.algorithm.parameters.member(0))["approx_kl"]) > 0.01
    assert float(metrics["approx_kl"]) > 0.01 / 6
    noise = learner.algorithm.noise(tuple(rollout.action.shape[2:]))
    learner.algorithm.update(RolloutCollector(learner.env, 1).collect(learner.algorithm.explore, noise))
    assert bool(steps.moves[len(moved)]), "the member is active again in the next iteration"


@pytest.mark.parametrize("inactive", [True, False])
def test_inactive_members_are_not_checked_for_divergence(inactive: bool) -> None:
    """A stopped member skips its samples, so a non-finite value in them must not mark it as diverged."""
    env = small_env((0, 1))
    learner = small_learner(env=env)
    rollout = RolloutCollector(env, 0).collect(
        learner.algorithm.explore, learner.algorithm.noise((2, 3, env.action_size))
    )
    items = (rollout.bar[0], rollout.account[0], rollout.action[0], rollout.log_probability[0])  # [P, G, ...]
    advantage, target = rollout.reward[0], torch.zeros_like(rollout.reward[0])
    target[1, 0, 0] = torch.inf
    batch = (*items, advantage, target)
    before = learner.algorithm.parameters.flat.clone()
    learner.algorithm._minibatch(batch, torch.arange(2).expand(2, 2), torch.tensor([True, not inactive]))
    assert learner.alive == [True, inactive]
    assert torch.equal(learner.algorithm.parameters.flat[1], before[1])
    assert not torch.equal(learner.algorithm.parameters.flat[0], before[0])


def test_kl_estimate_approximates_the_exact_kl_divergence() -> None:
    """KL divergence between collecting and updated policy: estimator k3 of Schulman (2020), many samples."""
    env = small_env(envs=1200, group=6)
    learner = small_learner(env=env, epochs=2, minibatches=1, learning_rate=0.02, **NO_LIMIT)
    rollout = RolloutCollector(env, 0).collect(
        learner.algorithm.explore, learner.algorithm.noise((200, 6, env.action_size))
    )
    reference = ReferencePPO(learner.algorithm, rollout, baseline=True)
    learner.algorithm.update(rollout)
    updated = learner.algorithm.parameters.member(0)
    before = small_learner(env=env).algorithm.parameters.member(0)
    one, other = (reference.distribution(weights)[0] for weights in (before, updated))
    exact = float((kl_divergence(one.normal, other.normal) * one.valid).sum(-1).mean())
    estimate = float(reference.terms(updated)["approx_kl"])
    assert exact > 1e-3
    assert estimate == pytest.approx(exact, rel=0.05)


def test_factor_scales_the_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, (rollout,) = learner_with_rollouts(epochs=1, learning_rate=0.02)
    steps = record_steps(learner.algorithm, monkeypatch)
    learner.algorithm.update(rollout, 0.25)
    assert steps.rates[0].tolist() == pytest.approx([0.005])


def test_advantages_are_normalised_for_each_member() -> None:
    """Rewards a thousand times larger give the same policy loss."""
    env = small_env((0, 0))
    learner = small_learner(env=env, epochs=1, minibatches=1)
    rollout = RolloutCollector(env, 0).collect(
        learner.algorithm.explore, learner.algorithm.noise((2, 3, env.action_size))
    )
    scaled_reward = rollout.reward * torch.tensor([1.0, 1000.0], dtype=torch.float64).view(1, 2, 1, 1)
    learner.algorithm.reward_scale = torch.ones(2, dtype=torch.float64)
    zero_values = {
        name: torch.zeros_like(view) for name, view in learner.algorithm.parameters.views.items() if "value" in name
    }
    for p in range(2):
        learner.algorithm.parameters.load(
            p, {**learner.algorithm.parameters.member(p), **{n: x[p] for n, x in zero_values.items()}}
        )
    metrics = learner.algorithm.update(rollout._replace(reward=scaled_reward))
    assert float(metrics["value_loss"][1]) == pytest.approx(1e6 * float(metrics["value_loss"][0]))
    assert float(metrics["policy_loss"][1]) == pytest.approx(float(metrics["policy_loss"][0]), abs=1e-6)


def test_unknown_hyperparameter_is_rejected() -> None:
    with pytest.raises(ConfigError, match="ppo has no hyperparameter 'momentum'; it has learning_rate, gamma"):
        small_learner(hyperparameters=[{"momentum": 0.9}])
    assert len(MEMBER_SETTINGS) == 9
