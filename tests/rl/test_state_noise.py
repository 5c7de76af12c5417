"""State-dependent exploration (gSDE) against Stable-Baselines3, and in learners."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.errors import ConfigError
from finrl_pod.random import MemberGenerators, generator, generators
from finrl_pod.rl.algorithms.ppo import PPO
from finrl_pod.rl.networks.distributions import GAUSSIAN, StateNoise, StateNoisePolicy
from finrl_pod.rl.networks.policies import PolicyInit, PolicySpec
from finrl_pod.rl.optimisation.optimiser import Parameters
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import A2CConfig, PPOConfig
from finrl_pod.settings.run import EnvironmentConfig
from tests.markets import random_market

DOUBLE = torch.float64
P, K, ROW, HIDDEN, SIZE = 2, 5, 3, 6, 2
PENDULUM = "gym:Pendulum-v1"
SMALL: dict[str, Any] = {"policy": "mlp", "hidden": (8, 6), "horizon": 40, "use_sde": True, "learning_rate": 1e-2}


def policy_and_inputs() -> tuple[StateNoisePolicy, Parameters, torch.Tensor, torch.Tensor]:
    spec = PolicySpec("mlp", 0, ROW, SIZE, (7, HIDDEN), "direct")
    policy = StateNoisePolicy(spec)
    generators = [generator(0, p, "weights") for p in range(P)]
    parameters = Parameters([policy.init(s, DOUBLE, PolicyInit(-1.0)) for s in generators])
    spread = torch.randn(P, HIDDEN, SIZE, generator=generator(1, 0, "spread"), dtype=DOUBLE)
    parameters.views["log_std"].detach().copy_(spread * 0.3 - 1)
    rows = torch.randn(P, K, 1, ROW, generator=generator(2, 0, "rows"), dtype=DOUBLE)
    return policy, parameters, rows, rows.new_zeros(P, K, 0, 0)


def test_actions_log_prob_entropy_and_gradients_match_stable_baselines3() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from stable_baselines3.common.distributions import StateDependentNoiseDistribution
    policy, parameters, rows, no_features = policy_and_inputs()
    matrices = torch.randn(P, K, 1, HIDDEN, SIZE, generator=generator(3, 0, "noise"), dtype=DOUBLE)
    with torch.no_grad():
        action, log_prob = policy.sample(parameters.views, no_features, rows, matrices)
    mean, log_std = policy.decide(parameters.views, no_features, rows, None)
    ours = GAUSSIAN.log_probability(action, mean, log_std)
    torch.testing.assert_close(ours.detach(), log_prob)
    gradient = parameters.gradient((ours.sum() + GAUSSIAN.entropy(mean, log_std).sum()), partial=True)
    for p in range(P):
        theirs = StateDependentNoiseDistribution(SIZE)
        views = {name: x.detach()[p].clone().requires_grad_() for name, x in parameters.views.items()}
        x = torch.tanh(rows[p, :, 0] @ views["actor_own_w"] + views["actor_b0"])
        latent = torch.tanh(x @ views["actor_w1"] + views["actor_b1"])
        means = latent @ views["actor_w2"] + views["actor_b2"]
        theirs.proba_distribution(means, views["log_std"], latent)
        theirs.exploration_matrices = views["log_std"].exp() * matrices[p, :, 0]
        torch.testing.assert_close(theirs.sample().detach(), action[p, :, 0])
        expected = theirs.log_prob(action[p, :, 0])
        torch.testing.assert_close(ours[p, :, 0].detach(), expected.detach())
        spread = theirs.entropy()
        assert spread is not None
        torch.testing.assert_close(GAUSSIAN.entropy(mean, log_std)[p].detach(), spread.mean().detach())
        (expected.sum() + spread.mean()).backward()
        for name, part in parameters.views_of(gradient).items():
            slope = views[name].grad
            torch.testing.assert_close(part[p], torch.zeros_like(part[p]) if slope is None else slope, msg=name)


def test_noise_matrix_is_resampled_at_its_interval() -> None:
    def noise_matrices(interval: int) -> torch.Tensor:
        source = MemberGenerators(generators(0, (0, 1), "noise"))
        return torch.stack(list(StateNoise(HIDDEN, interval).noise((7, 4, 1, SIZE), source, DOUBLE)))

    three = noise_matrices(3)
    assert three.shape == (7, 2, 4, 1, HIDDEN, SIZE)
    assert torch.equal(three[0], three[2])
    assert torch.equal(three[3], three[5])
    assert not (three[2] == three[3]).any()
    assert not (three[0, 0] == three[0, 1]).any()
    whole = noise_matrices(0)
    assert (whole == whole[0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("record", [PPOConfig, A2CConfig])
@pytest.mark.parametrize(
    "extra", [{}, {"h_term": 1.0, "normalise": True}], ids=["plain", "with regulariser and normalisation"]
)
def test_four_members_equal_four_single_runs(record: type[Any], extra: dict[str, Any]) -> None:
    def train(members: tuple[int, ...]) -> Learner:
        config = record(
            **SMALL, **extra, log_std_init=-1.0, sde_sample_freq=4, orthogonal_init=False, activation="relu"
        )
        learner = Learner(GymnasiumVecEnv(PENDULUM, envs=2, members=members), config, seed=1, dtype=DOUBLE)
        learner.learn(4 * learner.iteration_samples)
        return learner

    members = (0, 1, 3, 4)
    population = train(members)
    for p, member in enumerate(members):
        for ours, alone in zip(population.algorithm.member(p), train((member,)).algorithm.member(0), strict=True):
            for key, value in ours.items():
                torch.testing.assert_close(value, alone[key], rtol=1e-9, atol=1e-9, msg=key)


def test_resumed_run_is_bit_identical() -> None:
    def make_learner() -> Learner:
        config = A2CConfig(**SMALL, optimiser="rmsprop", learning_rate_schedule="constant")
        return Learner(GymnasiumVecEnv(PENDULUM, envs=2), config, seed=1)

    whole = make_learner()
    whole.learn(3 * whole.iteration_samples)
    saved = whole.checkpoint()
    whole.learn(3 * whole.iteration_samples)
    resumed = make_learner()
    resumed.resume(saved)
    resumed.learn(3 * resumed.iteration_samples)
    one, other = whole.checkpoint(), resumed.checkpoint()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_initial_weights_follow_the_settings() -> None:
    def initial_weights(**settings: Any) -> dict[str, torch.Tensor]:
        config = PPOConfig(policy="mlp", hidden=(64,), horizon=8, minibatches=2, **settings)
        return Learner(GymnasiumVecEnv(PENDULUM), config, seed=1).algorithm.member(0)[0]

    default, uniform = initial_weights(), initial_weights(orthogonal_init=False, log_std_init=-2.0)
    products = default["actor_own_w"] @ default["actor_own_w"].T  # 3 orthogonal rows of norm sqrt(2)
    torch.testing.assert_close(products, 2 * torch.eye(3))
    assert float(default["actor_w1"].norm()) == pytest.approx(0.01)
    for name, fan_in in (("actor_own_w", 3), ("actor_b0", 3), ("critic_w1", 64), ("critic_b1", 64)):
        assert (
            0.4 / math.sqrt(fan_in) < float(uniform[name].abs().max()) <= 1 / math.sqrt(fan_in) or name == "critic_b1"
        )
    assert default["log_std"].tolist() == [0.0]
    assert uniform["log_std"].tolist() == [-2.0]


def test_relu_network_matches_torch() -> None:
    config = PPOConfig(policy="mlp", hidden=(8, 6), horizon=8, minibatches=2, activation="relu")
    learner = Learner(GymnasiumVecEnv(PENDULUM), config, seed=1, dtype=DOUBLE)
    views, _ = learner.algorithm.member(0)
    row = torch.randn(4, 3, generator=generator(0, 0, "row"), dtype=DOUBLE)
    x = torch.relu(row @ views["actor_own_w"] + views["actor_b0"])
    x = torch.relu(x @ views["actor_w1"] + views["actor_b1"])
    expected = x @ views["actor_w2"] + views["actor_b2"]
    torch.testing.assert_close(learner.act(row.unsqueeze(0))[0], expected)


def test_linear_clip_range_schedule() -> None:
    config = PPOConfig(
        policy="mlp", hidden=(8,), horizon=8, minibatches=2, clip_range=0.4, clip_range_schedule="linear", target_kl=1e9
    )
    learner = Learner(GymnasiumVecEnv(PENDULUM), config)
    clips: list[float] = []
    algorithm = learner.algorithm
    assert isinstance(algorithm, PPO)
    learner.learn(32, callback=lambda *_: clips.append(float(algorithm.clip[0])))
    assert clips == pytest.approx([0.4, 0.3, 0.2, 0.1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_sde": True}, "agent.use_sde needs agent.policy = \"mlp\", got 'equivariant'"),
        ({"activation": "relu"}, "agent.activation needs agent.policy"),
        ({"orthogonal_init": False}, "agent.orthogonal_init needs agent.policy"),
        ({"policy": "mlp", "use_sde": True, "sde_sample_freq": -1}, "agent.sde_sample_freq"),
        ({"optimiser_epsilon": 0.0}, "agent.optimiser_epsilon"),
        ({"log_std_init": math.nan}, "agent.log_std_init"),
        ({"clip_range_schedule": "linear", "learning_rate_schedule": "constant"}, "agent.clip_range_schedule"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    env = make_env(random_market(3), EnvironmentConfig(window=8, envs=6, group=3))
    with pytest.raises(ConfigError, match=message):
        Learner(env, PPOConfig(**{"horizon": 6, "minibatches": 2, **settings}))


def test_discrete_actions_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"agent\.use_sde needs continuous"):
        Learner(GymnasiumVecEnv("gym:CartPole-v1"), PPOConfig(**{**SMALL, "minibatches": 2}))
