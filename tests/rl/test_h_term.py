"""The H-term regulariser against plain numpy, and its gradient in the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from finrl_pod.errors import ConfigError, RunError
from finrl_pod.rl.algorithms.ppo import PPO
from finrl_pod.rl.experience import RolloutCollector
from finrl_pod.rl.networks.distributions import GAUSSIAN
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import OnPolicyConfig, PPOConfig
from tests.markets import random_market
from tests.rl.all_algorithms import small_config, small_learner, training_state
from tests.rl.small_learners import small_env

H_TERM: dict[str, Any] = {"h_term": 2.0, "h_steps": 3, "h_trajectories": 4, "h_buffer": 10}
BOTH_ALGORITHMS = pytest.mark.parametrize("name", ["ppo", "a2c"])


def reference_best_segments(
    rollout: Any, reward: np.ndarray, discount: float, steps: int, count: int
) -> list[tuple[int, int, int]]:
    """Starts (step, group, account) of one member's best segments, best first. reward: [H, G, A]."""
    over = (rollout.terminated | rollout.truncated)[:, 0].numpy()
    segments = []
    for start in range(0, reward.shape[0] - steps + 1, steps):
        for g in range(reward.shape[1]):
            for a in range(reward.shape[2]):
                segments.append((sum(discounted_rewards(reward, over, start, g, a, discount, steps)), start, g, a))
    segments.sort(key=lambda each: -each[0])
    return [(h, g, a) for _, h, g, a in segments[:count]]


def discounted_rewards(
    reward: np.ndarray, over: np.ndarray, start: int, g: int, a: int, discount: float, steps: int
) -> list[float]:
    """discount^k * r_k of a segment; zero after the end of an episode."""
    discounted = []
    for k in range(steps):
        discounted.append(discount**k * float(reward[start + k, g, a]))
        if over[start + k, g, a]:
            return discounted + [0.0] * (steps - 1 - k)
    return discounted


@pytest.mark.parametrize("policy", ["equivariant", "mlp"])
@pytest.mark.parametrize("baseline", [False, True])
def test_energy_matches_numpy(policy: str, baseline: bool) -> None:
    env = small_env(market=random_market(2, gaps=0.1, starts={1: 12}))
    config = PPOConfig(
        policy=policy, hidden=(6, 5), horizon=7, minibatches=1, gamma=0.8, group_baseline=baseline, **H_TERM
    )  # type: ignore[arg-type]
    ppo = Learner(env, config, seed=3, dtype=torch.float64).algorithm
    assert isinstance(ppo, PPO)
    assert ppo.h_term is not None
    rollout = RolloutCollector(env, 0).collect(ppo.explore, ppo.noise((env.groups, env.accounts, env.action_size)))
    assert rollout.truncated.any()
    scaled = ppo._scale_rewards(rollout.reward)
    generator = torch.Generator()
    generator.set_state(ppo.h_term.source.members[0].get_state())
    ppo.h_term.remember(rollout, scaled, ppo.settings["gamma"], steps=2)
    ppo.parameters.flat.add_(0.05)  # the policy differs from the one that collected the rollout

    reward = rollout.reward[:, 0].numpy() / rollout.reward.std().item()
    if baseline:
        reward = reward - reward.mean(-1, keepdims=True)
    best = reference_best_segments(rollout, reward, 0.8, 3, 4)
    over = (rollout.terminated | rollout.truncated)[:, 0].numpy()
    views = {name: x.detach() for name, x in ppo.parameters.views.items()}
    std = np.exp(views["log_std"][0].numpy())
    total = 0.0
    sampled = torch.randint(4, (2, 4), generator=generator)[0].tolist()
    for start, g, a in (best[i] for i in sampled):
        segment_rewards = discounted_rewards(reward, over, start, g, a, 0.8, 3)
        log_ratio, numbers = 0.0, 0
        for k in range(3):
            h = start + k
            features, tradable = ppo.inputs.of_actor({}, rollout.bar[h, :, g : g + 1])
            account = rollout.account[h, :, g : g + 1, a : a + 1]
            mean = ppo.policy.mean(views, features, account, tradable)[0, 0, 0].numpy()
            action = rollout.action[h, 0, g, a].numpy()
            log_density = -0.5 * ((action - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
            counts = np.concatenate([[True], tradable[0, 0].numpy()])  # cash always does
            numbers += int(counts.sum())
            log_ratio += float((log_density + np.zeros_like(action))[counts].sum())
            log_ratio -= float(rollout.log_probability[h, 0, g, a])
            total += segment_rewards[k] * np.exp(log_ratio / numbers)
    energy = ppo.h_term.energy(lambda *seen: _log_prob(ppo, *seen), ppo.settings["gamma"], ppo.valid_scores)
    assert float(energy.detach()[0]) == pytest.approx(-total / 4, rel=1e-9)
    gradient = ppo.parameters.gradient(energy.sum(), partial=True)
    assert torch.isfinite(gradient).all()
    assert gradient.any()


def _log_prob(ppo: PPO, bar: torch.Tensor, account: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    features, tradable = ppo.inputs.of_actor({}, bar)
    views, valid = ppo.parameters.views, ppo.valid_scores(bar)
    return GAUSSIAN.log_probability(
        action, ppo.policy.mean(views, features, account, tradable), views["log_std"], valid
    )


def test_buffer_overwrites_the_oldest_segments() -> None:
    learner = small_learner("ppo", **H_TERM)
    learner.learn(5 * learner.iteration_samples)
    h_term = learner.algorithm.h_term  # type: ignore[attr-defined]
    assert (h_term.buffer.count, h_term.buffer.written) == (10, 20)


@BOTH_ALGORITHMS
def test_h_term_adds_its_gradient_to_the_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = {}
    for weight in (0.0, 1e-9, 2.0):
        settings = {**H_TERM, "h_term": weight, "max_grad_norm": 1e9}
        if name == "ppo":
            settings |= {"epochs": 1, "minibatches": 1}
        learner = small_learner(name, **settings)
        algorithm: Any = learner.algorithm
        seen: list[torch.Tensor] = []
        monkeypatch.setattr(algorithm.optimiser, "step", lambda flat, gradient, *_, to=seen: to.append(gradient))
        learner.learn(learner.iteration_samples)
        gradients[weight] = seen[0]
    torch.testing.assert_close(gradients[1e-9], gradients[0.0], rtol=1e-6, atol=1e-8)
    assert (gradients[2.0] - gradients[0.0]).abs().max() > 1e-4


@pytest.mark.slow
@BOTH_ALGORITHMS
def test_members_are_independent_and_resume_exactly(name: str) -> None:
    settings = {**H_TERM, "learning_rate_schedule": "constant"}
    each: list[dict[str, float]] = [{}, {"h_term": 0.5}]
    both = small_learner(name, (0, 1), seed=4, hyperparameters=each, **settings)
    alone = small_learner(name, (1,), seed=4, hyperparameters=each[1:], **settings)
    for learner in (both, alone):
        learner.learn(8 * learner.iteration_samples)
    saved = both.checkpoint()
    for key, value in training_state(alone).items():
        torch.testing.assert_close(training_state(both, 1)[key], value, rtol=1e-9, atol=1e-9)
    resumed = small_learner(name, (0, 1), seed=4, hyperparameters=each, **settings)
    resumed.resume(saved)
    for learner in (both, resumed):
        learner.learn(3 * learner.iteration_samples)
    one, two = training_state(both, 1), training_state(resumed, 1)
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"agent\.h_steps must be at most agent\.horizon = 6, got 9"):
        small_learner("ppo", h_term=1.0, h_steps=9)
    with pytest.raises(ConfigError, match=r"agent\.h_buffer is out of its range, got 0"):
        small_learner("ppo", h_buffer=0)
    with pytest.raises(ConfigError, match=r"agent\.h_buffer of .* takes .* GiB"):
        small_learner("a2c", **{**H_TERM, "h_buffer": 10**12})
    config = small_config("ppo")
    assert isinstance(config, OnPolicyConfig)
    assert config.h_term == 0
    plain = small_learner("ppo")
    assert plain.algorithm.slot_items == 0
    with pytest.raises(RunError, match="ppo has no state between iterations"):
        plain.algorithm.load_slot_state({"counts": torch.zeros(3)})


@BOTH_ALGORITHMS
def test_h_term_with_discrete_actions(name: str) -> None:
    """A discrete action counts as one sampled number."""
    env = small_env((0, 1), kind="discrete")
    settings = {**H_TERM, "policy": "mlp", "learning_rate_schedule": "constant"}
    learner = Learner(env, small_config(name, **settings), seed=1, dtype=torch.float64)
    learner.learn(6 * learner.iteration_samples)
    assert learner.alive == [True, True]
    h_term = learner.algorithm.h_term  # type: ignore[attr-defined]
    assert h_term.buffer.data["action"].dtype == torch.int64
    assert h_term.buffer.data["action"].shape[-1] == 1
