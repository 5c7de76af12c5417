"""The Gymnasium views, under Gymnasium's and Stable-Baselines3's own checks."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from finrl_pod_envs.gym import SCORE_SCALE, GymMarketEnv, GymVectorEnv
from finrl_pod_envs.trading_envs import make_env
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from finrl_pod.errors import InputError
from finrl_pod.settings.run import EnvironmentConfig
from tests.markets import random_market

MARKET = random_market(6, bars=60)
CONFIG = EnvironmentConfig(window=8)
KINDS: list[dict[str, Any]] = [{}, {"short": True}, {"kind": "stock_trading"}]


def crashing() -> GymVectorEnv:
    """One asset that loses 99.9% at bar 5; windows are the bars from 2 to 13."""
    market = random_market(0, bars=30, assets=1, volatility=0.0)
    close = market.close * torch.where(torch.arange(30) > 5, 1e-3, 1.0).unsqueeze(-1)
    market = dataclasses.replace(market, close=close, fill=torch.cat([close[1:], close[-1:]]))
    return GymVectorEnv(market, dataclasses.replace(CONFIG, window=12), first=2, last=13, envs=2)


@pytest.mark.parametrize("settings", KINDS)
def test_the_single_view_passes_gymnasiums_check(settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(GymMarketEnv(MARKET, dataclasses.replace(CONFIG, **settings)), skip_render_check=True)


@pytest.mark.parametrize("settings", KINDS)
def test_the_single_view_passes_stable_baselines3s_check(settings: dict[str, Any]) -> None:
    from stable_baselines3.common.env_checker import check_env as check_for_sb3

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_for_sb3(GymMarketEnv(MARKET, dataclasses.replace(CONFIG, **settings)))


def test_an_episode_is_a_whole_window_and_then_requires_reset() -> None:
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
            assert observation[0] < 1, "the last observation is that of the window that ended"
        assert set(info) == {"equity", "turnover", "cost", "time"}
        with pytest.raises(InputError, match="episode is over"):
            env.step(np.ones(4, np.float32))


def test_seeds_repeat_the_episodes_of_the_single_view() -> None:
    env = GymMarketEnv(MARKET, CONFIG)
    runs = [np.stack([env.reset(seed=seed)[0]] + [env.reset()[0] for _ in range(5)]) for seed in (1, 1, 2)]
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])
    assert len(np.unique(runs[0], axis=0)) > 3


def test_actions_are_scaled_scores_for_weights_and_plain_for_shares() -> None:
    for settings, scale in (({}, SCORE_SCALE), ({"kind": "stock_trading"}, 1.0)):
        config = dataclasses.replace(CONFIG, **settings)
        view, inner = GymMarketEnv(MARKET, config), make_env(MARKET, config, envs=1, group=1)
        view.reset(seed=3)
        inner.reset(0)
        inner.set_state(view._adapter.env.state)
        action = np.linspace(-1, 1, inner.action_size, dtype=np.float32)
        want = inner.step(torch.from_numpy(action * scale).reshape(1, 1, -1))
        assert view.step(action)[1] == pytest.approx(want.reward.item(), abs=1e-9)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (np.zeros(3), r"shape \(4,\), got \(3,\)"),
        (np.zeros((1, 4)), r"shape \(4,\), got \(1, 4\)"),
        (np.array([0, np.nan, 0, np.inf]), r"must be finite, got 2 values"),
    ],
)
def test_bad_actions_are_refused_and_leave_the_episode_as_it_is(action: Any, words: str) -> None:
    env, untouched = GymMarketEnv(MARKET, CONFIG), GymMarketEnv(MARKET, CONFIG)
    for view in (env, untouched):
        view.reset(seed=0)
    with pytest.raises(InputError, match=words):
        env.step(action)
    good = np.ones(4, np.float32)
    assert np.array_equal(env.step(good)[0], untouched.step(good)[0])


def test_bad_actions_are_refused_by_the_vector_view() -> None:
    env = GymVectorEnv(MARKET, CONFIG, envs=2)
    env.reset(seed=0)
    with pytest.raises(InputError, match=r"shape \(2, 4\), got \(4,\)"):
        env.step(np.zeros(4))
    with pytest.raises(InputError, match="must be finite, got 1 values"):
        env.step(np.array([[0, 0, 0, 0], [0, 0, np.nan, 0]]))


def test_the_vector_view_equals_single_views() -> None:
    """Its accounts, one by one, against a single view set to the same bar and account."""
    vector, single = GymVectorEnv(MARKET, CONFIG, envs=3), GymMarketEnv(MARKET, CONFIG)
    observations, _ = vector.reset(seed=1)
    single.reset(seed=0)
    actions = np.random.default_rng(0).uniform(-1, 1, (7, 3, 4)).astype(np.float32)
    before = vector._adapter.env.state
    assert before is not None
    rewards, last = np.zeros((7, 3)), observations
    for t in range(7):
        last, rewards[t], *_ = vector.step(actions[t])
    for e in range(3):
        single.reset(seed=0)
        single._adapter.env.set_state(
            before._replace(
                **{name: getattr(before, name)[:, e : e + 1] for name in ("day", "left", "round", "cash", "shares")}
            )
        )
        for t in range(7):
            row, reward, *_ = single.step(actions[t, e])
            assert reward == pytest.approx(rewards[t, e], abs=1e-7)
        assert np.allclose(row, last[e], atol=1e-6)


def test_the_vector_view_follows_gymnasiums_same_step_autoreset() -> None:
    """Beside Gymnasium's own vector environment over the single view: same keys, shapes and dtypes in every step."""
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


def test_only_the_ruined_account_of_the_vector_view_gets_a_final_observation() -> None:
    env = crashing()
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


def test_observations_of_the_vector_view_are_new_arrays() -> None:
    env = GymVectorEnv(MARKET, CONFIG, envs=2)
    first, _ = env.reset(seed=0)
    kept = first.copy()
    second, *_ = env.step(np.ones((2, 4), np.float32))
    again = second.copy()
    env.step(np.ones((2, 4), np.float32))
    assert np.array_equal(first, kept)
    assert np.array_equal(second, again)
