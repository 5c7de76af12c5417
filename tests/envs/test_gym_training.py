"""Stable-Baselines3's PPO learns on the Gymnasium environment."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from finrl_pod_envs.gym import GymMarketEnv

from finrl_pod.settings.run import EnvironmentConfig
from tests.markets import random_market

CONFIG = EnvironmentConfig(window=32, cost_bps=5.0)


@pytest.mark.slow
def test_stable_baselines3_ppo_learns_from_a_leaked_future() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # raised by packages that SB3 imports
        from stable_baselines3 import PPO
        from stable_baselines3.common.vec_env import DummyVecEnv

    market = random_market(0, bars=400, assets=3, features=1, leak=True)
    agent = PPO(
        "MlpPolicy",
        DummyVecEnv([lambda: GymMarketEnv(market, CONFIG)] * 4),
        n_steps=64,
        batch_size=64,
        learning_rate=3e-3,
        gamma=0.5,
        policy_kwargs={"net_arch": [32]},
        seed=0,
        device="cpu",
    )

    def mean_reward(episodes: int = 8) -> float:
        env, rewards = GymMarketEnv(market, CONFIG), []
        for episode in range(episodes):
            observation, _ = env.reset(seed=episode)
            done = False
            while not done:
                action, _ = agent.predict(observation, deterministic=True)
                observation, reward, terminated, truncated, _ = env.step(action)
                rewards.append(reward)
                done = terminated or truncated
        return float(np.mean(rewards))

    before = mean_reward()
    agent.learn(3_000)
    after = mean_reward()
    best_possible = float(np.diff(np.log(market.fill.numpy()), axis=0).max(-1).clip(min=0).mean())
    assert after > before + 0.3 * best_possible, f"{before=} {after=} {best_possible=}"
