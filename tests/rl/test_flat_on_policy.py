"""On-policy algorithms on flat observations and discrete actions: distributions, bootstrapping, learning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.errors import ConfigError
from finrl_pod.random import MemberGenerators, generator, generators
from finrl_pod.rl.algorithms.ppo import PPO
from finrl_pod.rl.networks.distributions import CATEGORICAL
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import A2CConfig, PPOConfig
from finrl_pod.settings.run import EnvironmentConfig
from tests.markets import random_market

CARTPOLE, PENDULUM = "gym:CartPole-v1", "gym:Pendulum-v1"
SMALL: dict[str, Any] = {"policy": "mlp", "hidden": (16,), "horizon": 40, "learning_rate": 1e-2}
DOUBLE = torch.float64


@pytest.mark.slow
def test_categorical_matches_torch() -> None:
    logits = torch.randn(2, 3, 1, 4, generator=generator(0, 0, "logits"), dtype=DOUBLE)
    no_log_std = logits.new_empty(2, 0)
    theirs = torch.distributions.Categorical(logits=logits)
    choice = theirs.sample()
    ours = CATEGORICAL.log_probability(choice.unsqueeze(-1), logits, no_log_std)
    torch.testing.assert_close(ours, theirs.log_prob(choice))
    torch.testing.assert_close(CATEGORICAL.entropy(logits, no_log_std), theirs.entropy().mean((1, 2)))
    assert torch.equal(CATEGORICAL.best(logits), logits.argmax(-1, keepdim=True))


def test_categorical_samples_follow_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0], dtype=DOUBLE)
    noise = CATEGORICAL.noise((1, 200_000, 3), MemberGenerators(generators(1, (0,), "draws")), DOUBLE)
    samples = CATEGORICAL.sample(logits, logits, noise)
    share = torch.bincount(samples.flatten(), minlength=3) / samples.numel()
    torch.testing.assert_close(share.double(), torch.softmax(logits, -1), atol=0.005, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [CARTPOLE, PENDULUM])
@pytest.mark.parametrize("record", [PPOConfig, A2CConfig])
def test_members_equal_single_runs(name: str, record: type[Any]) -> None:
    def train(members: tuple[int, ...]) -> Learner:
        learner = Learner(GymnasiumVecEnv(name, envs=3, members=members), record(**SMALL), seed=2, dtype=DOUBLE)
        learner.learn(5 * learner.iteration_samples)
        return learner

    both = train((0, 4))
    for p, member in enumerate((0, 4)):
        one = train((member,))
        for key, value in both.algorithm.member(p)[0].items():
            torch.testing.assert_close(value, one.algorithm.member(0)[0][key], rtol=1e-9, atol=1e-9)


def test_truncated_episode_bootstraps_from_final_observation() -> None:
    """Several truncations per rollout at different steps, against the critic's value of the final observations."""
    env = GymnasiumVecEnv(PENDULUM, envs=2)
    config = PPOConfig(**{**SMALL, "horizon": 450, "minibatches": 2})
    learner = Learner(env, config, dtype=DOUBLE)
    collector = learner.collector
    lane_steps = {"taken": torch.zeros(2, 100, 1), "length": torch.tensor([0, 100])}
    collector.observation = env.resume({**env.checkpoint(), **lane_steps})  # the second lane is 100 steps ahead
    finals: list[torch.Tensor] = []
    step = env.step

    def recording_step(action: torch.Tensor) -> Any:
        outcome = step(action)
        finals.append(outcome.final_observation.double())
        return outcome

    env.step = recording_step  # type: ignore[method-assign]
    algorithm = learner.algorithm
    assert isinstance(algorithm, PPO)
    rollout = collector.collect(algorithm.explore, algorithm.noise((2, 1, 1)))
    assert [int(n) for n in rollout.truncated_groups.sum(0).flatten()] == [2, 2]
    assert not torch.equal(rollout.truncated_groups[:, 0, 0], rollout.truncated_groups[:, 0, 1])
    _, next_values = algorithm._values(rollout)
    rows = torch.stack(finals).transpose(0, 1).reshape(1, -1, 1, 3)
    features = algorithm.features[torch.zeros(1, rows.shape[1], dtype=torch.int64)]
    expected = algorithm.policy.value(algorithm.parameters.views, features, rows, None)
    torch.testing.assert_close(next_values.flatten(), expected.flatten().detach())


def test_discrete_markets_require_the_mlp_policy() -> None:
    env = make_env(random_market(4, bars=60), EnvironmentConfig(kind="discrete", window=8, envs=6, group=3))
    with pytest.raises(ConfigError, match='"equivariant" of ppo scores assets and makes no choices'):
        Learner(env, PPOConfig(horizon=6, minibatches=2))
    learner = Learner(env, PPOConfig(policy="mlp", horizon=6, minibatches=2, hidden=(8,)))
    learner.learn(3 * learner.iteration_samples)
    action = learner.act(env.reset(1))
    assert action.shape == (1, 6, 1)
    assert action.dtype == torch.int64
    assert learner.alive == [True]


@pytest.mark.slow
def test_ppo_learns_cartpole() -> None:
    env = GymnasiumVecEnv(CARTPOLE, envs=8)
    config = PPOConfig(
        policy="mlp", hidden=(64, 64), horizon=32, epochs=20, minibatches=1, gamma=0.98, gae_lambda=0.8,
        learning_rate=1e-3, target_kl=1e9, group_baseline=False, scale_rewards=False,
    )  # fmt: skip
    learner = Learner(env, config, seed=1, threads=1)
    learner.learn(20_000)
    last = [episode.total for episode in env.episodes()][-20:]
    assert sum(last) / len(last) > 100  # a random policy reaches about 22
