"""MuJoCo Warp as the physics of tasks: the inverted pendulum and the ant of Gymnasium's MuJoCo models."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import mujoco
import mujoco_warp as mjw
import torch
import warp as wp
from torch import Tensor

ASSETS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"


class Worlds:
    """N worlds of a model. position, velocity, control: [N, ...] tensors that share the simulator's memory."""

    file: str
    substeps: int
    noise: float
    steps: int

    def __init__(self, worlds: int) -> None:
        model = mujoco.MjModel.from_xml_path(str(ASSETS / self.file))
        start = mujoco.MjData(model)
        self.model = mjw.put_model(model)
        self.data = mjw.put_data(model, start, nworld=worlds, nconmax=32, njmax=128)
        self.position, self.velocity = wp.to_torch(self.data.qpos), wp.to_torch(self.data.qvel)
        self.control = wp.to_torch(self.data.ctrl)
        self.start = torch.as_tensor(start.qpos, dtype=torch.float32)
        self.bound = torch.as_tensor(model.actuator_ctrlrange[:, 1], dtype=torch.float32)
        self.num_envs, self.num_actions = worlds, model.nu
        observation = torch.empty(worlds, model.nq + model.nv)
        self.num_obs = observation.shape[1]

    def advance(self, actions: Tensor) -> None:
        self.control.copy_(actions.clamp(-1, 1) * self.bound)
        for _ in range(self.substeps):
            mjw.step(self.model, self.data)

    def renew(self, ids: Tensor) -> None:
        self.position[ids] = self.start + self.noise * (2 * torch.rand(len(ids), self.position.shape[1]) - 1)
        self.velocity[ids] = self.noise * torch.randn(len(ids), self.velocity.shape[1])
        wp.to_torch(self.data.qacc_warmstart)[ids] = 0.0

    def fill(self, observation: Tensor) -> None:
        torch.cat([self.position, self.velocity], -1, out=observation)


class Pendulum(Worlds):
    """Balance a pole on a cart; it is lost at an angle of 0.2."""

    file, substeps, noise, steps = "inverted_pendulum.xml", 2, 0.01, 100

    def move(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        self.advance(actions)
        return torch.ones(self.num_envs), self.position[:, 1].abs() > 0.2


class Ant(Worlds):
    """Walk forward; lost when the torso leaves the heights of 0.2 to 1."""

    file, substeps, noise, steps = "ant.xml", 5, 0.1, 40

    def move(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        self.advance(actions)
        height = self.position[:, 2]
        reward = 1.0 + self.velocity[:, 0] - 0.5 * actions.clamp(-1, 1).square().sum(-1)
        return reward, (height < 0.2) | (height > 1.0)
