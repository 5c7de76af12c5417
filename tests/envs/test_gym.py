"""The Gymnasium adapters, including Gymnasium's and Stable-Baselines3's environment checkers."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from finrl_pod_envs.gym import GymMarketEnv, GymVectorEnv
from finrl_pod_envs.trading_envs import make_env
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from finrl_pod.errors import InputError
from finrl_pod.rl.networks.inputs import SCORE_SCALE
from finrl_pod.settings.run import EnvironmentConfig
from tests.markets import random_market

MARKET = random_market(6, bars=60)
CONFIG = EnvironmentConfig(window=8)
STATE_FIELDS = ("bar", "steps_left", "episode_index", "cash", "shares")
KINDS: list[dict[str, Any]] = [{}, {"short": True}, {"kind": "stock_trading"}]


def crashing_vector_env() -> GymVectorEnv:
    """One asset that loses 99.9% at bar 5; windows are bars 2 to 13."""
    market = random_market(0, bars=30, assets=1, volatility=0.0)
    close = market.close * torch.where(torch.arange(30) > 5, 1e-3, 1.0).unsqueeze(-1)
    market = dataclasses.replace(market, close=close, fill=torch.cat([close[1:], close[-1:]]))
    return GymVectorEnv(market, dataclasses.replace(CONFIG, window=12), first=2, last=13, envs=2)


@pytest.mark.parametrize("settings", KINDS)
def test_single_env_passes_the_gymnasium_checker(settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(GymMarketEnv(MARKET, dataclasses.replace(CONFIG, **settings)), skip_render_check=True)


@pytest.mark.parametrize("settings", KINDS)
def test_single_env_passes_the_stable_baselines3_checker(settings: dict[str, Any]) -> None:
    from stable_baselines3.common.env_checker import check_env as check_for_sb3

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_for_sb3(GymMarketEnv(MARKET, dataclasses.replace(CONFIG, **settings)))


def test_views_of_a_market_with_a_training_split_stay_on_it() -> None:
    market = dataclasses.replace(MARKET, fitted=(3, 40))
    for env in (GymMarketEnv(market, CONFIG), GymVectorEnv(market, CONFIG, envs=2)):
        inner = env._adapter.env
        assert (inner.first, inner.last) == (max(3, market.first), 38)
    chosen = GymMarketEnv(market, CONFIG, first=20, last=50)._adapter.env
    assert (chosen.first, chosen.last) == (20, 50)


def test_episode_is_one_window_and_then_requires_reset() -> None:
    env = GymMarketEnv(MARKET, CONFIG)
    with pytest.raises(InputError, match="call reset"):
        env.step(env.action_space.sample())
    for _ in range(3):
        observation, _ = env.reset(seed=None)
        assert observation[0] == 1
        for t in range(1, 9):
            observation, reward, terminated, truncated, info = env.step(np.ones(4, np.float32))
            assert (terminated, truncated) == (False, t == 8)
            assert isinstance(reward, float)
            assert observation[0] < 1, "the last observation belongs to the ended window"
        assert set(info) == {"equity", "turnover", "cost", "time"}
        with pytest.raises(InputError, match="episode is over"):
            env.step(np.ones(4, np.float32))


def test_single_env_episodes_repeat_with_the_seed() -> None:
    env = GymMarketEnv(MARKET, CONFIG)
    runs = [np.stack([env.reset(seed=seed)[0]] + [env.reset()[0] for _ in range(5)]) for seed in (1, 1, 2)]
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])
    assert len(np.unique(runs[0], axis=0)) > 3


def test_actions_are_scaled_to_scores_for_portfolios_only() -> None:
    for settings, scale in (({}, SCORE_SCALE), ({"kind": "stock_trading"}, 1.0)):
        config = dataclasses.replace(CONFIG, **settings)
        gym_env, market_env = GymMarketEnv(MARKET, config), make_env(MARKET, config, envs=1, group=1)
        gym_env.reset(seed=3)
        market_env.reset(0)
        market_env.set_state(gym_env._adapter.env.state)
        action = np.linspace(-1, 1, market_env.action_size, dtype=np.float32)
        expected = market_env.step(torch.from_numpy(action * scale).reshape(1, 1, -1))
        assert gym_env.step(action)[1] == pytest.approx(expected.reward.item(), abs=1e-9)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.zeros(3), r"shape \(4,\), got \(3,\)"),
        (np.zeros((1, 4)), r"shape \(4,\), got \(1, 4\)"),
        (np.array([0, np.nan, 0, np.inf]), r"must be finite, got 2 values"),
    ],
)
def test_invalid_actions_are_rejected_without_advancing_the_episode(action: Any, message: str) -> None:
    env, reference = GymMarketEnv(MARKET, CONFIG), GymMarketEnv(MARKET, CONFIG)
    for gym_env in (env, reference):
        gym_env.reset(seed=0)
    with pytest.raises(InputError, match=message):
        env.step(action)
    action_after = np.ones(4, np.float32)
    assert np.array_equal(env.step(action_after)[0], reference.step(action_after)[0])


def test_vector_env_rejects_invalid_actions() -> None:
    env = GymVectorEnv(MARKET, CONFIG, envs=2)
    env.reset(seed=0)
    with pytest.raises(InputError, match=r"shape \(2, 4\), got \(4,\)"):
        env.step(np.zeros(4))
    with pytest.raises(InputError, match="must be finite, got 1 values"):
        env.step(np.array([[0, 0, 0, 0], [0, 0, np.nan, 0]]))


@pytest.mark.parametrize("settings", [{"envs": 0}, {"envs": 2, "group": 0}])
def test_no_environments_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(InputError, match="at least 1"):
        GymVectorEnv(MARKET, CONFIG, **settings)


def test_vector_env_matches_single_envs() -> None:
    """Each account against a single environment started from the same state."""
    vector, single = GymVectorEnv(MARKET, CONFIG, envs=3), GymMarketEnv(MARKET, CONFIG)
    observations, _ = vector.reset(seed=1)
    single.reset(seed=0)
    actions = np.random.default_rng(0).uniform(-1, 1, (7, 3, 4)).astype(np.float32)
    initial_state = vector._adapter.env.state
    assert initial_state is not None
    rewards, last = np.zeros((7, 3)), observations
    for t in range(7):
        last, rewards[t], *_ = vector.step(actions[t])
    for e in range(3):
        single.reset(seed=0)
        single._adapter.env.set_state(
            initial_state._replace(**{name: getattr(initial_state, name)[:, e : e + 1] for name in STATE_FIELDS})
        )
        for t in range(7):
            row, reward, *_ = single.step(actions[t, e])
            assert reward == pytest.approx(rewards[t, e], abs=1e-7)
        assert np.allclose(row, last[e], atol=1e-6)


def test_vector_env_autoresets_like_gymnasiums_same_step_mode() -> None:
    """Compared with SyncVectorEnv of the single environment: same keys, shapes and dtypes at every step."""
    ours = GymVectorEnv(MARKET, CONFIG, envs=2)
    theirs = gymnasium.vector.SyncVectorEnv(
        [lambda: GymMarketEnv(MARKET, CONFIG)] * 2, autoreset_mode=AutoresetMode.SAME_STEP
    )
    assert ours.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.num_envs == theirs.num_envs == 2
    assert ours.reset(seed=0)[0].shape == theirs.reset(seed=0)[0].shape
    actions = np.random.default_rng(0).uniform(-1, 1, (17, 2, 4)).astype(np.float32)
    for t, action in enumerate(actions, 1):
        a, b = ours.step(action), theirs.step(action)
        for x, y in zip(a[:4], b[:4], strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
        assert a[0] in ours.observation_space
        assert np.array_equal(a[3], b[3])
        ended = t % 8 == 0
        assert ("final_obs" in a[4]) == ("final_obs" in b[4]) == ended
        if ended:
            assert a[4]["final_obs"].dtype == b[4]["final_obs"].dtype == object
            assert a[4]["final_obs"][1].shape == b[4]["final_obs"][1].shape
            for key in ("_final_obs", "_final_info"):
                assert np.array_equal(a[4][key], b[4][key])
            assert set(a[4]["final_info"]) == set(b[4]["final_info"]) - {"time", "_time"}
            assert (a[0][:, 0] == 1).all()
            assert all(row[0] < 1 for row in a[4]["final_obs"])


def test_only_the_ruined_account_has_a_final_observation() -> None:
    env = crashing_vector_env()
    env.reset(seed=0)
    action = np.array([[-1, 1], [1, -1]], np.float32)
    for _ in range(3):
        assert "final_obs" not in env.step(action)[4]
    observation, _, terminated, truncated, info = env.step(action)
    assert terminated.tolist() == [True, False]
    assert not truncated.any()
    assert info["_final_obs"].tolist() == info["_final_info"].tolist() == [True, False]
    assert info["final_obs"][1] is None
    assert info["final_obs"][0][1] > 0.9
    assert observation[0, 0] == 1


def test_vector_env_returns_new_observation_arrays() -> None:
    env = GymVectorEnv(MARKET, CONFIG, envs=2)
    first, _ = env.reset(seed=0)
    first_copy = first.copy()
    second, *_ = env.step(np.ones((2, 4), np.float32))
    second_copy = second.copy()
    env.step(np.ones((2, 4), np.float32))
    assert np.array_equal(first, first_copy)
    assert np.array_equal(second, second_copy)
