"""Isaac Gym behind its own API, as a VecEnv: copies of one asset, driven by forces on its degrees of freedom.

The sequence of calls follows the tasks of Isaac Gym: create_sim, add_ground, load_asset, create_env and create_actor
for each environment, prepare_sim, acquire_dof_state_tensor; then for each step set_dof_actuation_force_tensor,
simulate, fetch_results (on the CPU), refresh_dof_state_tensor; and set_dof_state_tensor_indexed for environments that
start an episode. A subclass says what a task is: `IsaacGymCartpole` is the cart-pole of its examples.

Isaac Gym (Preview 4) is on no package registry and its binaries are for Python 3.6 to 3.8, older than this package
needs: nothing here has run on it. Tests drive it with a stand-in of the API on MuJoCo.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch

from finrl_pod.errors import InputError, SetupError
from finrl_pod.random import generators
from finrl_pod.types import EnvStep, Tensor

SPACING = 2.0  # metres from the origin of an environment to its border
SUBSTEPS = 2
NO_GRAPHICS = -1


class IsaacGym(NamedTuple):
    """The modules `isaacgym.gymapi` and `isaacgym.gymtorch`."""

    gymapi: Any
    gymtorch: Any


def load_isaac_gym() -> IsaacGym:
    """Import Isaac Gym. Raises SetupError if it is not installed, or if torch was imported before it."""
    is_imported = "isaacgym" in sys.modules
    try:
        return IsaacGym(import_module("isaacgym.gymapi"), import_module("isaacgym.gymtorch"))
    except ImportError as error:
        if "before" in str(error) and not is_imported:
            raise SetupError(
                "Isaac Gym must be imported before torch: import isaacgym at the top of your script"
            ) from None
        raise SetupError(
            f"Isaac Gym cannot be imported ({error}); it is on no package registry: download Preview 4 from NVIDIA's "
            "developer site and install its folder python with pip"
        ) from None


class IsaacGymEnv(ABC):
    """P x E copies of an asset as a VecEnv.

    A subclass sets observation_size, action_size and steps (the limit of an episode) and defines the abstract methods.
    N = P x E copies with `dofs` degrees of freedom each; positions and velocities are [N, dofs], in metres or radians.
    """

    observation_size: int
    action_size: int
    steps: int
    action_kind = "direct"
    actions = 0

    def __init__(
        self,
        asset: Path,
        *,
        envs: int = 16,
        members: Sequence[int] = (0,),
        device: torch.device | str = "cpu",
        seconds: float = 1 / 60,
        modules: IsaacGym | None = None,
    ) -> None:
        """asset: URDF or MJCF file. seconds: length of a step. modules: modules of Isaac Gym, imported if None.

        Raises SetupError without Isaac Gym, or if it creates no simulation.
        """
        self.members = len(members)
        self.envs = envs
        self.member_ids = tuple(members)
        self.device = torch.device(device)
        self.gymapi, self.gymtorch = modules or load_isaac_gym()
        self.gym = self.gymapi.acquire_gym()
        self.sim = self._create_sim(seconds)
        self.dofs = self._create_envs(asset, self.members * envs)
        self.gym.prepare_sim(self.sim)
        # [N * dofs, 2]: position and velocity, refreshed by the simulator in place.
        self._state = self.gymtorch.wrap_tensor(self.gym.acquire_dof_state_tensor(self.sim))
        self._motion_table = self._state.view(self.members * envs, self.dofs, 2)

    # ------------------------------------------------------------------ the task

    @abstractmethod
    def initial(self, random: Tensor) -> tuple[Tensor, Tensor]:
        """Positions and velocities [N, dofs] of new episodes, from numbers [N, 2 * dofs] uniform in [0, 1)."""

    @abstractmethod
    def observe(self, position: Tensor, velocity: Tensor) -> Tensor:
        """Observations [N, S], a new tensor."""

    @abstractmethod
    def judge(self, position: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Rewards [N] and whether the task has ended [N] bool."""

    @abstractmethod
    def forces(self, action: Tensor) -> Tensor:
        """Forces or torques [N, dofs] float32 in newtons or newton metres, of actions [N, D] in [-1, 1]."""

    # ------------------------------------------------------------------ VecEnv

    def reset(self, seed: int) -> Tensor:
        """Start all episodes; the first observation [P, E, S]."""
        self._streams = generators(seed, self.member_ids, "isaac gym", "cpu")
        self._age = torch.zeros(self.members * self.envs, dtype=torch.int64, device=self.device)
        self._restart(torch.ones_like(self._age, dtype=torch.bool))
        return self._view(self.observe(*self._motion()))

    def step(self, action: Tensor) -> EnvStep:
        """Step by actions [P, E, D], clipped to [-1, 1]. Raises InputError for another shape."""
        expected_shape = (self.members, self.envs, self.action_size)
        if tuple(action.shape) != expected_shape:
            raise InputError(f"an action must have shape {expected_shape}, got {tuple(action.shape)}")
        flat = action.detach().to(self.device).reshape(-1, self.action_size).clamp(-1.0, 1.0)
        forces = self.forces(flat).contiguous().view(-1)
        self.gym.set_dof_actuation_force_tensor(self.sim, self.gymtorch.unwrap_tensor(forces))
        self.gym.simulate(self.sim)
        if self.device.type == "cpu":
            self.gym.fetch_results(self.sim, True)
        self.gym.refresh_dof_state_tensor(self.sim)
        self._age = self._age + 1
        position, velocity = self._motion()
        final = self.observe(position, velocity)
        reward, terminated = self.judge(position, velocity)
        truncated = (self._age >= self.steps) & ~terminated
        episode_ends = terminated | truncated
        self._restart(episode_ends)
        observation = self.observe(*self._motion())
        return EnvStep(*(self._view(x) for x in (observation, reward, terminated, truncated, final)))

    def close(self) -> None:
        """Destroy the simulation."""
        self.gym.destroy_sim(self.sim)

    # ------------------------------------------------------------------ the simulation

    def _create_sim(self, seconds: float) -> Any:
        api = self.gymapi
        on_gpu = self.device.type == "cuda"
        params = api.SimParams()
        params.dt = seconds
        params.substeps = SUBSTEPS
        params.up_axis = api.UP_AXIS_Z
        params.gravity = api.Vec3(0.0, 0.0, -9.81)
        params.use_gpu_pipeline = params.physx.use_gpu = on_gpu
        sim = self.gym.create_sim(self.device.index or 0, NO_GRAPHICS, api.SIM_PHYSX, params)
        if sim is None:
            raise SetupError(f"Isaac Gym created no simulation on {self.device}; its messages above say why")
        plane = api.PlaneParams()
        plane.normal = api.Vec3(0.0, 0.0, 1.0)
        self.gym.add_ground(sim, plane)
        return sim

    def _create_envs(self, asset: Path, count: int) -> int:
        """Create the environments; returns the degrees of freedom of one."""
        api = self.gymapi
        gym = self.gym
        options = api.AssetOptions()
        options.fix_base_link = True
        loaded_asset = gym.load_asset(self.sim, str(asset.parent), asset.name, options)
        pose = api.Transform()
        pose.p = api.Vec3(0.0, 0.0, 2.0)
        corner = api.Vec3(SPACING, SPACING, SPACING)
        for i in range(count):
            env = gym.create_env(self.sim, api.Vec3(-SPACING, -SPACING, 0.0), corner, math.isqrt(count))
            actor = gym.create_actor(env, loaded_asset, pose, "actor", i, 1, 0)
            drives = gym.get_actor_dof_properties(env, actor)
            drives["driveMode"][:] = api.DOF_MODE_EFFORT
            drives["stiffness"][:] = 0.0
            drives["damping"][:] = 0.0
            gym.set_actor_dof_properties(env, actor, drives)
        return int(gym.get_asset_dof_count(loaded_asset))

    def _motion(self) -> tuple[Tensor, Tensor]:
        """Positions and velocities [N, dofs], views of the simulator tensor."""
        return self._motion_table[..., 0], self._motion_table[..., 1]

    def _restart(self, mask: Tensor) -> None:
        """Start new episodes where [N] bool; the simulator takes over the states at its next step."""
        ids = mask.nonzero().flatten()
        if not len(ids):
            return
        uniform_numbers = torch.stack(
            [torch.rand(self.envs, 2 * self.dofs, generator=stream) for stream in self._streams]
        )
        position, velocity = self.initial(uniform_numbers.view(-1, 2 * self.dofs).to(self.device))
        self._motion_table[ids] = torch.stack([position, velocity], -1)[ids]
        actors = ids.to(torch.int32)
        self.gym.set_dof_state_tensor_indexed(
            self.sim, self.gymtorch.unwrap_tensor(self._state), self.gymtorch.unwrap_tensor(actors), len(actors)
        )
        self._age[ids] = 0

    def _view(self, x: Tensor) -> Tensor:
        return x.view(self.members, self.envs, *x.shape[1:])


class IsaacGymCartpole(IsaacGymEnv):
    """Balance a pole on a cart, with the rewards and limits of the example of Isaac Gym.

    observation: position and velocity of the cart, angle and angular velocity of the pole. action: force on the cart as
    a share of `force`. An asset has the slider of the cart first and the hinge of the pole second.
    """

    observation_size = 4
    action_size = 1
    steps = 500
    force = 400.0  # newtons
    track = 3.0  # metres from the centre to its end

    def initial(self, random: Tensor) -> tuple[Tensor, Tensor]:
        spread = random - 0.5
        return 0.2 * spread[:, : self.dofs], 0.5 * spread[:, self.dofs :]

    def observe(self, position: Tensor, velocity: Tensor) -> Tensor:
        return torch.stack([position[:, 0], velocity[:, 0], position[:, 1], velocity[:, 1]], -1)

    def judge(self, position: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor]:
        reward = 1.0 - position[:, 1].square() - 0.01 * velocity[:, 0].abs() - 0.005 * velocity[:, 1].abs()
        has_fallen = (position[:, 0].abs() > self.track) | (position[:, 1].abs() > math.pi / 2)
        return torch.where(has_fallen, -2.0, reward), has_fallen

    def forces(self, action: Tensor) -> Tensor:
        forces = torch.zeros(len(action), self.dofs, device=self.device)
        forces[:, 0] = self.force * action[:, 0]
        return forces
