"""PPO's update of one member against a plain formulation with torch.distributions, from the rollout alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from finrl_pod.errors import ConfigError
from finrl_pod.rl.algorithms.ppo import DIAGNOSTICS, MEMBER_SETTINGS, PPO
from finrl_pod.rl.buffers.rollout import Rollout
from finrl_pod.rl.training.learner import Learner
from finrl_pod.rl.training.worker import Worker
from tests.markets import random_market
from tests.rl.learners import easily_ruined, small_env, small_learner
from tests.rl.plain_gae import Trajectory, plain_gae

SETTINGS = {"gamma": 0.9, "gae_lambda": 0.8, "clip_range": 0.1, "entropy_coefficient": 0.02, "value_coefficient": 0.7}
NO_LIMIT: dict[str, Any] = {"max_grad_norm": 1e9, "target_kl": 1e9}


@dataclass
class Steps:
    """What each gradient step of an update started from and was given."""

    weights: list[dict[str, torch.Tensor]] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)
    rates: list[torch.Tensor] = field(default_factory=list)
    moves: list[torch.Tensor] = field(default_factory=list)


def watch(ppo: PPO, monkeypatch: pytest.MonkeyPatch) -> Steps:
    steps, plain = Steps(), ppo.optimiser.step

    def step(flat: torch.Tensor, gradient: torch.Tensor, rate: torch.Tensor, moves: torch.Tensor) -> None:
        steps.weights.append(ppo.parameters.member(0))
        steps.gradients.append(gradient.clone())
        steps.rates.append(rate.clone())
        steps.moves.append(moves.clone())
        plain(flat, gradient, rate, moves)

    monkeypatch.setattr(ppo.optimiser, "step", step)
    return steps


def prepared(rollouts: int = 1, **settings: Any) -> tuple[Learner, list[Rollout]]:
    """A learner and rollouts in which accounts are ruined and windows end, with assets that come and go."""
    env = small_env(market=random_market(2, gaps=0.1, starts={1: 12}), cost_bps=4000.0)
    settings = {"horizon": 8, "epochs": 3, "minibatches": 1, **SETTINGS, **NO_LIMIT, **settings}
    learner = small_learner(env=env, **settings)
    worker, shape = Worker(env, 0), (env.groups, env.accounts, env.action_size)
    with easily_ruined(0.65):
        parts = [worker.collect(learner.algorithm.explore, learner.algorithm.noise(shape)) for _ in range(rollouts)]
    assert all(part.terminated.any() and part.truncated.any() for part in parts)
    return learner, parts


class OfTradable(NamedTuple):
    """The scores that count, each with its normal distribution."""

    each: Any
    counts: torch.Tensor

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        return (self.each.log_prob(action) * self.counts).sum(-1)

    def entropy(self) -> torch.Tensor:
        return (self.each.entropy() * self.counts).sum(-1)


class PlainPPO:
    """The loss as the paper writes it, over a list of samples."""

    def __init__(self, ppo: PPO, rollout: Rollout, baseline: bool, reward_std: torch.Tensor | None = None) -> None:
        self.ppo, self.rollout = ppo, rollout
        _, _, groups, accounts = rollout.reward.shape
        values, following = ppo._values(rollout)  # checked in test_rollout
        self.reward_std = rollout.reward.std() if reward_std is None else reward_std
        trajectory = Trajectory(
            *(
                x.flatten(2)
                for x in (
                    rollout.reward / self.reward_std,
                    values,
                    following,
                    rollout.terminated,
                    rollout.truncated,
                )
            )
        )
        discount, decay = (float(ppo.settings[name][0]) for name in ("gamma", "gae_lambda"))
        each = [plain_gae(trajectory, 0, e, discount, decay) for e in range(groups * accounts)]
        advantage = torch.tensor(each, dtype=torch.float64).T.reshape(rollout.reward.shape)
        self.values, self.target = values, advantage + values
        if baseline:
            advantage = advantage - advantage.mean(-1, keepdim=True)
        self.advantage = (advantage - advantage.mean()) / advantage.std()

    def distribution(self, weights: dict[str, torch.Tensor]) -> tuple[Any, torch.Tensor]:
        """Of the scores of all samples, and their values."""
        horizon, _, groups, accounts = self.rollout.reward.shape
        features, tradable = self.ppo.rows(self.rollout.day.reshape(1, -1))
        account = self.rollout.account.reshape(1, horizon * groups, accounts, -1)
        batched = {name: value.unsqueeze(0) for name, value in weights.items()}
        out = self.ppo.policy.forward(batched, features, account, tradable)
        mean = out.mean.view(self.rollout.action.shape)
        std = weights["log_std"].exp().expand_as(mean)
        valid = torch.ones(1, horizon * groups, self.rollout.action.shape[-1]).bool()
        if tradable is not None:
            valid[..., -tradable.shape[-1] :] = tradable
        counts = valid.view(horizon, 1, groups, 1, -1).expand_as(mean)
        return OfTradable(Normal(mean, std), counts), out.value.view(self.rollout.reward.shape)

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


@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "in pieces"])
@pytest.mark.parametrize("baseline", [True, False], ids=["group baseline", "no baseline"])
@pytest.mark.parametrize("policy", ["equivariant", "linear", "mlp"])
def test_gradients_are_those_of_the_papers_loss(
    policy: str, baseline: bool, pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three epochs over the whole rollout: the first at ratio 1, the others where some ratios are clipped."""
    learner, (rollout,) = prepared(policy=policy, group_baseline=baseline, learning_rate=0.03)
    if pieces:  # a policy so wide that no more than one item at a time would stay in cache
        monkeypatch.setattr(learner.algorithm.policy, "width", 10**12, raising=False)
    steps, plain = watch(learner.algorithm, monkeypatch), PlainPPO(learner.algorithm, rollout, baseline)
    metrics = learner.algorithm.update(rollout)
    assert len(steps.gradients) == 3
    for weights, gradient in zip(steps.weights, steps.gradients, strict=True):
        torch.testing.assert_close(gradient[0], plain.gradient(weights), rtol=1e-6, atol=1e-8)
    each = [{name: float(term) for name, term in plain.terms(weights).items()} for weights in steps.weights]
    assert each[0]["clip_fraction"] == 0
    assert all(0.1 < terms["clip_fraction"] < 0.9 for terms in each[1:])
    for name in ("policy_loss", "value_loss", "approx_kl", "clip_fraction"):
        mean = sum(terms[name] for terms in each) / 3
        assert float(metrics[name]) == pytest.approx(mean, rel=1e-6, abs=1e-8), name
    norms = [float(gradient.norm()) for gradient in steps.gradients]
    assert float(metrics["grad_norm"]) == pytest.approx(sum(norms) / 3)
    after = plain.distribution(learner.algorithm.parameters.member(0))[0]
    assert float(metrics["entropy"]) == pytest.approx(float(after.entropy().mean()))
    unexplained = float((plain.target - plain.values).var() / plain.target.var())
    assert float(metrics["explained_variance"]) == pytest.approx(1 - unexplained)
    assert float(metrics["reward"]) == pytest.approx(float(rollout.reward.mean()))
    assert set(metrics) == set(DIAGNOSTICS)


def test_the_group_baseline_changes_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above can tell one from the other."""
    learner, (rollout,) = prepared()
    weights = learner.algorithm.parameters.member(0)
    one, other = (PlainPPO(learner.algorithm, rollout, baseline).gradient(weights) for baseline in (True, False))
    assert (one - other).abs().max() > 1e-3


def test_a_lone_account_has_no_group_to_be_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    env = small_env(envs=4, group=1)
    learner = small_learner(env=env, minibatches=1, epochs=1, horizon=8, **NO_LIMIT)
    rollout = Worker(env, 0).collect(learner.algorithm.explore, learner.algorithm.noise((4, 1, env.action_size)))
    steps, plain = watch(learner.algorithm, monkeypatch), PlainPPO(learner.algorithm, rollout, baseline=False)
    learner.algorithm.update(rollout)
    torch.testing.assert_close(steps.gradients[0][0], plain.gradient(steps.weights[0]), rtol=1e-6, atol=1e-8)


def test_rewards_are_scaled_by_the_first_rollout_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, (first, second) = prepared(rollouts=2, epochs=1)
    steps, std = watch(learner.algorithm, monkeypatch), first.reward.std()
    learner.algorithm.update(first)
    plain = PlainPPO(learner.algorithm, second, baseline=True, reward_std=std)
    learner.algorithm.update(second)
    torch.testing.assert_close(steps.gradients[1][0], plain.gradient(steps.weights[1]), rtol=1e-6, atol=1e-8)
    assert float(learner.algorithm.reward_scale[0]) == pytest.approx(1 / float(std))


def test_minibatches_take_every_item_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a learning rate of next to nothing, an epoch's value gradients average to the whole rollout's."""
    learner, (rollout,) = prepared(
        minibatches=4, epochs=2, learning_rate=1e-300, entropy_coefficient=0.0, group_baseline=False
    )
    steps, plain = watch(learner.algorithm, monkeypatch), PlainPPO(learner.algorithm, rollout, baseline=False)
    learner.algorithm.update(rollout)
    assert len(steps.gradients) == 8
    whole = value_part(learner, plain.gradient(steps.weights[0]))
    for epoch in (steps.gradients[:4], steps.gradients[4:]):
        mean = torch.stack([value_part(learner, gradient[0]) for gradient in epoch]).mean(0)
        torch.testing.assert_close(mean, whole, rtol=1e-6, atol=1e-9)
    assert not torch.equal(steps.gradients[0], steps.gradients[4])


def value_part(learner: Learner, gradient: torch.Tensor) -> torch.Tensor:
    """The part of a gradient [D] that belongs to the value's own weights, which advantages do not touch."""
    sizes = [int(torch.Size(shape).numel()) for shape in learner.algorithm.parameters.shapes.values()]
    chunks = zip(learner.algorithm.parameters.shapes, torch.split(gradient, sizes), strict=True)
    return torch.cat([chunk for name, chunk in chunks if name.startswith("value")])


def test_gradients_are_clipped_and_the_norm_before_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, (rollout,) = prepared(epochs=1, max_grad_norm=0.01)
    steps, plain = watch(learner.algorithm, monkeypatch), PlainPPO(learner.algorithm, rollout, baseline=True)
    metrics = learner.algorithm.update(rollout)
    assert float(steps.gradients[0].norm()) == pytest.approx(0.01)
    assert float(metrics["grad_norm"]) == pytest.approx(float(plain.gradient(steps.weights[0]).norm()))


def test_a_member_that_moved_too_far_sits_out_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, (rollout,) = prepared(epochs=3, minibatches=2, learning_rate=0.05, target_kl=0.01)
    steps, plain = watch(learner.algorithm, monkeypatch), PlainPPO(learner.algorithm, rollout, baseline=True)
    metrics = learner.algorithm.update(rollout)
    moved = [bool(move) for move in steps.moves]
    assert moved == sorted(moved, reverse=True), "whoever stopped does not start again within the iteration"
    assert 1 <= sum(moved) < 6
    assert float(plain.terms(learner.algorithm.parameters.member(0))["approx_kl"]) > 0.01
    assert float(metrics["approx_kl"]) > 0.01 / 6
    noise = learner.algorithm.noise(tuple(rollout.action.shape[2:]))
    learner.algorithm.update(Worker(learner.env, 1).collect(learner.algorithm.explore, noise))
    assert bool(steps.moves[len(moved)]), "the next iteration starts afresh"


@pytest.mark.parametrize("sits_out", [True, False])
def test_inactive_members_are_not_checked_for_divergence(sits_out: bool) -> None:
    """Alone, it would not have met these samples: beside others, an overflow there must not break it."""
    env = small_env((0, 1))
    learner = small_learner(env=env)
    rollout = Worker(env, 0).collect(learner.algorithm.explore, learner.algorithm.noise((2, 3, env.action_size)))
    items = (rollout.day[0], rollout.account[0], rollout.action[0], rollout.log_probability[0])  # [P, G, ...]
    advantage, target = rollout.reward[0], torch.zeros_like(rollout.reward[0])
    target[1, 0, 0] = torch.inf
    batch = (*items, advantage, target)
    before = learner.algorithm.parameters.flat.clone()
    learner.algorithm._minibatch(batch, torch.arange(2).expand(2, 2), torch.tensor([True, not sits_out]), 1.0)
    assert learner.alive == [True, sits_out]
    assert torch.equal(learner.algorithm.parameters.flat[1], before[1])
    assert not torch.equal(learner.algorithm.parameters.flat[0], before[0])


def test_the_kl_estimate_is_the_kl_divergence_of_the_policies() -> None:
    """Of the policy that collected the data from the one that it became: k3 of Schulman (2020), over many samples."""
    env = small_env(envs=1200, group=6)
    learner = small_learner(env=env, epochs=2, minibatches=1, learning_rate=0.02, **NO_LIMIT)
    rollout = Worker(env, 0).collect(learner.algorithm.explore, learner.algorithm.noise((200, 6, env.action_size)))
    plain = PlainPPO(learner.algorithm, rollout, baseline=True)
    learner.algorithm.update(rollout)
    shrunk = learner.algorithm.parameters.member(0)
    before = small_learner(env=env).algorithm.parameters.member(0)
    one, other = (plain.distribution(weights)[0] for weights in (before, shrunk))
    exact = float((kl_divergence(one.each, other.each) * one.counts).sum(-1).mean())
    estimate = float(plain.terms(shrunk)["approx_kl"])
    assert exact > 1e-3
    assert estimate == pytest.approx(exact, rel=0.05)


def test_the_factor_scales_each_members_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, (rollout,) = prepared(epochs=1, learning_rate=0.02)
    steps = watch(learner.algorithm, monkeypatch)
    learner.algorithm.update(rollout, 0.25)
    assert steps.rates[0].tolist() == pytest.approx([0.005])


def test_advantages_are_normalised_for_each_member() -> None:
    """A member with rewards a thousand times another's has the same policy loss."""
    env = small_env((0, 0))
    learner = small_learner(env=env, epochs=1, minibatches=1)
    rollout = Worker(env, 0).collect(learner.algorithm.explore, learner.algorithm.noise((2, 3, env.action_size)))
    loud = rollout.reward * torch.tensor([1.0, 1000.0], dtype=torch.float64).view(1, 2, 1, 1)
    learner.algorithm.reward_scale = torch.ones(2, dtype=torch.float64)
    flat = {
        name: torch.zeros_like(view) for name, view in learner.algorithm.parameters.views.items() if "value" in name
    }
    for p in range(2):
        learner.algorithm.parameters.load(
            p, {**learner.algorithm.parameters.member(p), **{n: x[p] for n, x in flat.items()}}
        )
    metrics = learner.algorithm.update(rollout._replace(reward=loud))
    assert float(metrics["value_loss"][1]) == pytest.approx(1e6 * float(metrics["value_loss"][0]))
    assert float(metrics["policy_loss"][1]) == pytest.approx(float(metrics["policy_loss"][0]), abs=1e-6)


def test_an_unknown_hyperparameter_is_refused() -> None:
    with pytest.raises(ConfigError, match="ppo has no hyperparameter 'momentum'; it has learning_rate, gamma"):
        small_learner(hyperparameters=[{"momentum": 0.9}])
    assert len(MEMBER_SETTINGS) == 10
