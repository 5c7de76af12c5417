"""Markets with the interfaces of Isaac Gym and Isaac Lab; rsl_rl's needs tensordict."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch
from finrl_pod_envs.custom.contract import check_env
from finrl_pod_envs.custom.template import Drift
from finrl_pod_envs.observation import flat
from finrl_pod_envs.simulators.adapters import IsaacLabEnv, VecTaskEnv
from finrl_pod_envs.simulators.exports import ExportedIsaacLab, ExportedRslRl, ExportedVecTask, register_rl_games
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.errors import ConfigError, SetupError
from finrl_pod.settings.run import EnvironmentConfig
from tests.markets import random_market

MARKET = random_market(3, bars=60, assets=3, features=2)
N = 8


def market_env(kind: str = "portfolio") -> Any:
    config = EnvironmentConfig(kind=kind, window=10, envs=4, group=2)  # type: ignore[arg-type]
    return make_env(MARKET, config, members=(0, 3))


def test_sizes_and_spaces() -> None:
    task = ExportedVecTask(market_env(), clip_obs=5.0)
    assert (task.num_envs, task.num_obs, task.num_actions, task.max_episode_length) == (N, 1 + 3 + 6, 4, 10)
    assert task.observation_space.shape == (10,)
    assert task.action_space.shape == (4,)
    assert task.get_env_info()["agents"] == 1
    lab = ExportedIsaacLab(Drift(envs=3), max_episode_length=64)
    assert (lab.num_envs, lab.num_obs, lab.num_actions, lab.max_episode_length) == (3, 2, 1, 64)
    assert lab.single_observation_space["policy"].shape == (2,)
    assert lab.unwrapped is lab


@pytest.mark.parametrize("kind", ["portfolio", "stock_trading"])
def test_steps_are_those_of_the_market(kind: str) -> None:
    """Rewards, flags and rows of both exports equal the market's own with scaled actions."""
    scale = {"portfolio": 5.0, "stock_trading": 1.0}[kind]
    plain = market_env(kind)
    task, lab = ExportedVecTask(market_env(kind), seed=4), ExportedIsaacLab(market_env(kind), seed=4)
    observation = plain.reset(4)
    assert torch.equal(task.reset()["obs"], flat(MARKET, observation).view(N, -1))
    assert torch.equal(lab.reset()[0]["policy"], task.reset()["obs"])
    noise, ended = torch.Generator().manual_seed(1), 0
    for _ in range(25):
        action = 2 * torch.rand(N, task.num_actions, generator=noise) - 1
        out = plain.step((action * scale).view(2, 4, -1))
        obs, reward, reset, extras = task.step(action)
        groups, lab_reward, terminated, truncated, lab_extras = lab.step(action)
        rows, finals = (flat(MARKET, x).view(N, -1) for x in (out.observation, out.final_observation))
        over = (out.terminated | out.truncated).flatten()
        assert torch.equal(obs["obs"], rows)
        assert torch.equal(groups["policy"], rows)
        assert torch.equal(reward, out.reward.flatten())
        assert torch.equal(lab_reward, reward)
        assert torch.equal(reset, over.long())
        assert torch.equal(extras["time_outs"], out.truncated.flatten())
        assert torch.equal(terminated, out.terminated.flatten())
        assert torch.equal(truncated, out.truncated.flatten())
        assert ("final_obs" in extras) == ("final_obs" in lab_extras) == bool(over.any())
        if over.any():
            ended += int(over.sum())
            assert torch.equal(extras["final_obs"]["obs"], finals)
            assert torch.equal(lab_extras["final_obs"]["policy"], finals)
        assert torch.equal(task.progress_buf == 0, over | (task.progress_buf == 0))
    assert ended >= 2 * N


def test_exported_environments_can_be_taken_back() -> None:
    """Exported and adapted again, an environment keeps the contract and its episodes."""
    for wrap in (
        lambda envs, members: VecTaskEnv(ExportedVecTask(Drift(envs=envs), max_episode_length=64)),
        lambda envs, members: IsaacLabEnv(ExportedIsaacLab(Drift(envs=envs), max_episode_length=64)),
    ):
        assert check_env(wrap, members=(0,)) == []


def test_actions_and_observations_are_clipped() -> None:
    one, other = (ExportedVecTask(Drift(envs=3), clip_obs=0.01, clip_actions=0.5) for _ in range(2))
    for _ in range(5):
        first, second = one.step(torch.full((3, 1), 9.0)), other.step(torch.full((3, 1), 0.5))
        assert torch.equal(first[1], second[1])
        assert first[0]["obs"].abs().max() <= 0.01
    assert math.isinf(ExportedVecTask(Drift(envs=3)).clip_obs)


def test_bad_uses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="this environment has discrete ones"):
        ExportedIsaacLab(market_env("discrete"))
    with pytest.raises(ConfigError, match=r"reset_idx\(\) takes all 3 environments, got 1"):
        ExportedVecTask(Drift(envs=3)).reset_idx(torch.tensor([0]))
    monkeypatch.setitem(sys.modules, "tensordict", None)
    with pytest.raises(SetupError, match="needs tensordict; pip install tensordict"):
        ExportedRslRl(Drift(envs=3)).get_observations()
    monkeypatch.setitem(sys.modules, "rl_games.common", None)
    with pytest.raises(SetupError, match="rl_games is not installed"):
        register_rl_games("market", lambda: ExportedVecTask(Drift(envs=3)))
