"""The adapter of Isaac Gym's own API, driven with a stand-in on MuJoCo; nothing here has run on the real one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
import torch
from finrl_pod_envs.custom.contract import check_env
from finrl_pod_envs.simulators.isaac_gym import IsaacGymCartpole, load_isaac_gym

from finrl_pod.errors import InputError, SetupError
from tests.envs.simulators.isaac_gym_stand_in import Gym, isaac_gym

ASSET = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / "inverted_pendulum.xml"


class Cartpole(IsaacGymCartpole):
    """MuJoCo's inverted pendulum: a lighter cart than Isaac Gym's, on a track of one metre."""

    force, steps, track = 100.0, 40, 0.9


def cartpole(envs: int = 4, members: Sequence[int] = (0,)) -> tuple[Cartpole, Gym]:
    modules, gym = isaac_gym()
    return Cartpole(ASSET, envs=envs, members=members, modules=modules), gym


def test_it_keeps_the_contract() -> None:
    assert check_env(lambda envs, members: cartpole(envs, members)[0]) == []


def test_calls_are_in_the_order_of_isaac_gyms_tasks() -> None:
    env, gym = cartpole(2)
    one = ["create_env", "create_actor", "set_actor_dof_properties"]
    assert gym.calls == [
        "create_sim", "add_ground", "load_asset", *one, *one, "prepare_sim", "acquire_dof_state_tensor"
    ]  # fmt: skip
    gym.calls.clear()
    env.reset(1)
    assert gym.calls == ["set_dof_state_tensor_indexed"]
    gym.calls.clear()
    env.step(torch.zeros(1, 2, 1))
    assert gym.calls == ["set_dof_actuation_force_tensor", "simulate", "fetch_results", "refresh_dof_state_tensor"]
    env.close()
    assert gym.sims == []


def test_motion_is_that_of_mujoco() -> None:
    """Forces reach the cart of their own environment, and states are read from the right rows."""
    env, _ = cartpole(3)
    first = env.reset(5)[0]
    model = mujoco.MjModel.from_xml_path(str(ASSET))
    model.opt.timestep = 1 / 120
    actions = torch.rand(6, 1, 3, 1, generator=torch.Generator().manual_seed(1)) - 0.5
    outs = [env.step(action) for action in actions]
    for i in range(3):
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = first[i, [0, 2]].numpy(), first[i, [1, 3]].numpy()
        for action, out in zip(actions[:, 0, i, 0], outs, strict=True):
            data.qfrc_applied[:] = (100.0 * float(action), 0.0)
            mujoco.mj_step(model, data, nstep=2)
            expected = [data.qpos[0], data.qvel[0], data.qpos[1], data.qvel[1]]
            np.testing.assert_allclose(out.final_observation[0, i].numpy(), expected, rtol=1e-4, atol=1e-5)
            reward = 1 - data.qpos[1] ** 2 - 0.01 * abs(data.qvel[0]) - 0.005 * abs(data.qvel[1])
            lost = abs(data.qpos[0]) > 0.9 or abs(data.qpos[1]) > np.pi / 2
            assert bool(out.terminated[0, i]) == lost
            assert float(out.reward[0, i]) == pytest.approx(-2.0 if lost else reward, abs=1e-4)
            if lost:
                break


def test_episodes_start_near_the_upright_position() -> None:
    env, _ = cartpole(50)
    observation = env.reset(1)[0]
    assert observation[:, [0, 2]].abs().max() <= 0.1
    assert observation[:, [1, 3]].abs().max() <= 0.25
    assert observation.std(0).min() > 0.04


def test_wrong_actions_are_refused() -> None:
    env, _ = cartpole(2)
    env.reset(0)
    with pytest.raises(InputError, match=r"an action must have shape \(1, 2, 1\), got \(2, 1\)"):
        env.step(torch.zeros(2, 1))


def test_missing_simulation_is_told() -> None:
    modules, gym = isaac_gym()
    gym.create_sim = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(SetupError, match="created no simulation on cpu"):
        Cartpole(ASSET, modules=modules)


def test_what_is_missing_and_where_it_comes_from_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SetupError, match="is on no package registry: download Preview 4 from NVIDIA's developer site"):
        load_isaac_gym()

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> None:
            if name == "isaacgym":
                raise ImportError(
                    "PyTorch was imported before isaacgym modules.  Please import torch after isaacgym modules."
                )

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    with pytest.raises(SetupError, match="must be imported before torch: import isaacgym at the top"):
        load_isaac_gym()
