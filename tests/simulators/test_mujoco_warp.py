"""A real simulator behind the three interfaces: MuJoCo Warp, on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import mujoco
import numpy as np
import pytest
import torch
from finrl_pod_envs.custom.contract import check_env
from finrl_pod_envs.custom.episode_recorder import EpisodeRecorder
from finrl_pod_envs.simulators.adapters import IsaacLabEnv, RslRlEnv, VecTaskEnv

from finrl_pod.protocols import VecEnv
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import PPOConfig
from tests.envs.simulators.tasks import IsaacGymTask, IsaacLabTask, Physics, RslRlTask
from tests.simulators.mujoco_worlds import ASSETS, Ant, Pendulum

INTERFACES: dict[str, Callable[[Physics], VecEnv]] = {
    "VecTask": lambda physics: VecTaskEnv(IsaacGymTask(physics)),
    "Isaac Lab": lambda physics: IsaacLabEnv(IsaacLabTask(physics, keep=True)),
    "rsl_rl": lambda physics: RslRlEnv(RslRlTask(physics, keep=True)),
}


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("worlds", [Pendulum, Ant])
def test_worlds_keep_the_contract(worlds: Callable[[int], Physics], interface: str) -> None:
    make = INTERFACES[interface]
    assert check_env(lambda envs, members: make(worlds(envs)), envs=8, members=(0,)) == []


def test_motion_is_that_of_mujoco() -> None:
    """The worlds step as MuJoCo itself does, each by its own action."""
    env = VecTaskEnv(IsaacGymTask(Pendulum(3)))
    first = env.reset(1)[0]
    actions = 0.02 * (torch.rand(8, 1, 3, 1, generator=torch.Generator().manual_seed(1)) - 0.5)
    outs = [env.step(action).final_observation[0] for action in actions]
    model = mujoco.MjModel.from_xml_path(str(ASSETS / "inverted_pendulum.xml"))
    for i in range(3):
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = first[i, :2].numpy(), first[i, 2:].numpy()
        for action, out in zip(actions[:, 0, i, 0], outs, strict=True):
            data.ctrl[:] = 3.0 * float(action)
            mujoco.mj_step(model, data, nstep=2)
            np.testing.assert_allclose(out[i].numpy(), [*data.qpos, *data.qvel], atol=1e-4)


def test_tensors_share_the_simulators_memory() -> None:
    worlds = Pendulum(4)
    worlds.position[2, 1] = 0.25
    assert float(worlds.data.qpos.numpy()[2, 1]) == 0.25


def test_ppo_learns_to_balance() -> None:
    env = EpisodeRecorder(INTERFACES["Isaac Lab"](Pendulum(64)))
    config = PPOConfig(
        policy="mlp", hidden=(32, 32), horizon=32, epochs=5, minibatches=4, gamma=0.99, gae_lambda=0.95,
        group_baseline=False, learning_rate=0.003,
    )  # fmt: skip
    learner = Learner(env, config, seed=1)
    learner.learn(64 * 32)
    before = [episode.steps for episode in env.episodes()]
    learner.learn(64 * 32 * 25)
    env.episodes()
    learner.learn(64 * 32 * 4)
    after = [episode.steps for episode in env.episodes()]
    assert sum(after) / len(after) > 3 * sum(before) / len(before)
