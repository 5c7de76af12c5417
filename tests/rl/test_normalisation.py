"""Running normalisation against Stable-Baselines3's VecNormalize, in learners and in checkpoints."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.errors import ConfigError
from finrl_pod.random import generator
from finrl_pod.rl.algorithms.factory import make_actor
from finrl_pod.rl.optimisation.normalisation import RunningNormaliser
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import A2CConfig, PPOConfig
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import EnvStep
from tests.markets import random_market

DOUBLE = torch.float64
PENDULUM, CARTPOLE = "gym:Pendulum-v1", "gym:CartPole-v1"
SMALL: dict[str, Any] = {"policy": "mlp", "hidden": (8,), "horizon": 40, "normalise": True, "learning_rate": 1e-2}


class ReplayVecEnv:
    """Minimal Stable-Baselines3 vector environment that plays back observations [T, E, S] and rewards [T, E]."""

    def __init__(self, rows: np.ndarray, rewards: np.ndarray, done: np.ndarray, finals: np.ndarray) -> None:
        from gymnasium.spaces import Box

        self.rows, self.rewards, self.done, self.finals, self.t = rows, rewards, done, finals, 0
        self.num_envs, self.render_mode = rows.shape[1], None
        self.observation_space = Box(-np.inf, np.inf, rows.shape[2:], np.float64)
        self.action_space = Box(-1, 1, (1,), np.float32)

    def get_attr(self, name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, name)] * self.num_envs

    def reset(self) -> np.ndarray:
        return self.rows[0]

    def step_wait(self) -> Any:
        self.t += 1
        infos = [{"terminal_observation": final} for final in self.finals[self.t]]
        return self.rows[self.t], self.rewards[self.t], self.done[self.t], infos


def test_observations_and_rewards_match_vec_normalize() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from stable_baselines3.common.vec_env import VecNormalize
    rng = np.random.default_rng(0)
    steps, envs, size = 60, 3, 4
    rows = rng.normal([0.0, 5.0, -2.0, 0.1], [1.0, 30.0, 0.01, 1.0], (steps, envs, size))
    rows[20, 1, 0] = 1e4  # will be clipped
    rewards, finals = rng.normal(3, 2, (steps, envs)), rng.normal(size=(steps, envs, size))
    done, ended = rng.random((steps, envs)) < 0.1, rng.random((steps, envs)) < 0.5
    theirs = VecNormalize(ReplayVecEnv(rows, rewards, done, finals), gamma=0.9)  # type: ignore[arg-type]
    ours = RunningNormaliser(torch.tensor([0.9], dtype=DOUBLE), size, DOUBLE)

    first = torch.from_numpy(rows[0]).unsqueeze(0)
    ours.start(first)
    np.testing.assert_allclose(
        ours.normalise(first)[0].numpy(), theirs.reset(), rtol=1e-6
    )  # VecNormalize returns float32
    for t in range(1, steps):
        normalised, reward, _, infos = theirs.step_wait()
        zeros = torch.zeros(1, envs)
        final = torch.from_numpy(finals[t]).unsqueeze(0)
        step = EnvStep(
            observation=torch.from_numpy(rows[t]).unsqueeze(0),
            reward=torch.from_numpy(rewards[t]).unsqueeze(0),
            terminated=torch.from_numpy(done[t] & ended[t]).unsqueeze(0),
            truncated=torch.from_numpy(done[t] & ~ended[t]).unsqueeze(0),
            final_observation=final, equity=zeros, turnover=zeros, cost=zeros,
        )  # fmt: skip
        np.testing.assert_allclose(ours.update(step)[0].numpy(), reward, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(ours.normalise(step.observation)[0].numpy(), normalised, rtol=1e-5, atol=1e-6)
        for e in np.flatnonzero(done[t]):
            expected = infos[e]["terminal_observation"]
            np.testing.assert_allclose(ours.normalise(final)[0, e].numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.rows.mean[0].numpy(), theirs.obs_rms.mean, rtol=1e-12)
    np.testing.assert_allclose(ours.rows.variance[0].numpy(), theirs.obs_rms.var, rtol=1e-12)
    np.testing.assert_allclose(ours.sums.variance[0, 0].item(), theirs.ret_rms.var, rtol=1e-12)


def make(record: type[Any], name: str, members: tuple[int, ...], **settings: Any) -> Learner:
    return Learner(GymnasiumVecEnv(name, envs=2, members=members), record(**SMALL, **settings), seed=3, dtype=DOUBLE)


@pytest.mark.slow
@pytest.mark.parametrize("name", [PENDULUM, CARTPOLE])
@pytest.mark.parametrize("record", [PPOConfig, A2CConfig])
def test_statistics_of_members_equal_single_runs(name: str, record: type[Any]) -> None:
    population = make(record, name, (0, 1, 2, 5))
    population.learn(4 * population.iteration_samples)
    for p, member in enumerate((0, 1, 2, 5)):
        one = make(record, name, (member,))
        one.learn(4 * one.iteration_samples)
        for ours, alone in zip(population.algorithm.member(p), one.algorithm.member(0), strict=True):
            assert ours.keys() == alone.keys()
            for key, value in ours.items():
                torch.testing.assert_close(value, alone[key], rtol=1e-9, atol=1e-9, msg=key)


@pytest.mark.slow
def test_resumed_run_is_bit_identical() -> None:
    uninterrupted = make(PPOConfig, PENDULUM, (0, 1), learning_rate_schedule="constant")
    uninterrupted.learn(3 * uninterrupted.iteration_samples)
    saved = uninterrupted.checkpoint()
    assert (saved["rest.0.earned"] != 0).all()  # episodes are in progress
    uninterrupted.learn(3 * uninterrupted.iteration_samples)
    resumed = make(PPOConfig, PENDULUM, (0, 1), learning_rate_schedule="constant")
    resumed.resume(saved)
    resumed.learn(3 * resumed.iteration_samples)
    one, other = uninterrupted.checkpoint(), resumed.checkpoint()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_acting_does_not_update_statistics_and_weights_include_them() -> None:
    learner = make(PPOConfig, PENDULUM, (0,))
    learner.learn(3 * learner.iteration_samples)
    rows = torch.randn(1, 2, 3, generator=generator(0, 0, "rows"), dtype=DOUBLE) * 5
    weights, _ = learner.algorithm.member(0)
    action = learner.act(rows)
    after, _ = learner.algorithm.member(0)
    assert all(torch.equal(weights[key], after[key]) for key in weights)
    actor = make_actor("ppo", learner.algorithm.spec)
    features = rows.new_zeros(1, 2, 0, 0)
    params = {key: x.unsqueeze(0) for key, x in weights.items()}
    torch.testing.assert_close(actor.action(params, features, rows.unsqueeze(2), None).view(1, 2, 1), action)
    without_normaliser = {key: x for key, x in params.items() if not key.startswith("seen_")}
    assert not torch.allclose(actor.action(without_normaliser, features, rows.unsqueeze(2), None).view(1, 2, 1), action)


def test_normalise_is_rejected_for_markets() -> None:
    env = make_env(random_market(3), EnvironmentConfig(window=8, envs=6, group=3))
    with pytest.raises(ConfigError, match=r"agent\.normalise is for flat observations"):
        Learner(env, PPOConfig(policy="mlp", horizon=6, minibatches=2, normalise=True))
