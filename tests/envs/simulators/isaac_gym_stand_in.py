"""A stand-in for Isaac Gym's `gymapi` and `gymtorch` on MuJoCo: the calls that `simulators.isaac_gym` makes.

It refuses what the real one does not survive: calls out of order, tensors of another type or shape, memory that is not
contiguous. Names and arguments are those of the published type stubs of Isaac Gym Preview 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import torch
from finrl_pod_envs.simulators.isaac_gym import IsaacGym


@dataclass
class Vec3:
    x: float = 0.0
    y: float = 0.0
    z: float = 0.0


@dataclass
class Transform:
    p: Vec3 = field(default_factory=Vec3)


@dataclass
class PlaneParams:
    normal: Vec3 = field(default_factory=Vec3)


@dataclass
class AssetOptions:
    fix_base_link: bool = False


@dataclass
class SimParams:
    dt: float = 1 / 60
    substeps: int = 2
    up_axis: str = "y"
    gravity: Vec3 = field(default_factory=Vec3)
    use_gpu_pipeline: bool = False
    physx: Any = field(default_factory=lambda: SimpleNamespace(use_gpu=False))


@dataclass
class Sim:
    """state: [N * dofs, 2], what `acquire_dof_state_tensor` shares."""

    params: SimParams
    calls: list[str] = field(default_factory=list)
    model: Any = None
    data: list[Any] = field(default_factory=list)
    actors: int = 0
    prepared: bool = False
    simulated: bool = False
    state: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.float32))
    forces: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))


@dataclass
class GymTensor:
    """What `unwrap_tensor` returns and `wrap_tensor` takes: an address in the real one."""

    values: np.ndarray


class Gym:
    """calls: names of the functions that were called, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.sims: list[Sim] = []

    def create_sim(self, compute_device: int, graphics_device: int, type: str, params: SimParams) -> Sim | None:
        self._called("create_sim")
        assert type == "physx"
        assert graphics_device == -1
        assert params.up_axis == "z"
        sim = Sim(params)
        self.sims.append(sim)
        return sim

    def add_ground(self, sim: Sim, params: PlaneParams) -> None:
        self._called("add_ground")
        assert params.normal.z == 1

    def load_asset(self, sim: Sim, rootpath: str, filename: str, options: AssetOptions) -> Any:
        self._called("load_asset")
        assert options.fix_base_link
        sim.model = mujoco.MjModel.from_xml_path(str(Path(rootpath) / filename))
        sim.model.opt.timestep = sim.params.dt / sim.params.substeps
        sim.model.opt.gravity[:] = (sim.params.gravity.x, sim.params.gravity.y, sim.params.gravity.z)
        return sim.model

    def get_asset_dof_count(self, asset: Any) -> int:
        return int(asset.nv)

    def create_env(self, sim: Sim, lower: Vec3, upper: Vec3, num_per_row: int) -> Any:
        self._called("create_env")
        assert not sim.prepared, "environments are created before prepare_sim"
        assert num_per_row >= 1
        return SimpleNamespace(sim=sim)

    def create_actor(
        self, env: Any, asset: Any, pose: Transform, name: str, group: int, filter: int, segmentationId: int
    ) -> int:
        self._called("create_actor")
        env.sim.data.append(mujoco.MjData(asset))
        env.sim.actors += 1
        return 0

    def get_actor_dof_properties(self, env: Any, actor: int) -> np.ndarray:
        kinds = [("driveMode", np.int32), ("stiffness", np.float32), ("damping", np.float32)]
        return np.ones(env.sim.model.nv, kinds)

    def set_actor_dof_properties(self, env: Any, actor: int, properties: np.ndarray) -> bool:
        self._called("set_actor_dof_properties")
        assert (properties["driveMode"] == DOF_MODE_EFFORT).all(), "forces act in effort mode only"
        assert not properties["stiffness"].any()
        assert not properties["damping"].any()
        return True

    def prepare_sim(self, sim: Sim) -> bool:
        self._called("prepare_sim")
        assert sim.actors > 0
        sim.prepared = True
        sim.state = np.zeros((sim.actors * sim.model.nv, 2), np.float32)
        sim.forces = np.zeros(sim.actors * sim.model.nv, np.float32)
        return True

    def acquire_dof_state_tensor(self, sim: Sim) -> GymTensor:
        self._called("acquire_dof_state_tensor")
        assert sim.prepared, "tensors are acquired after prepare_sim"
        return GymTensor(sim.state)

    def set_dof_actuation_force_tensor(self, sim: Sim, forces: GymTensor) -> bool:
        self._called("set_dof_actuation_force_tensor")
        assert forces.values.dtype == np.float32
        assert forces.values.shape == sim.forces.shape
        sim.forces = forces.values.copy()
        return True

    def simulate(self, sim: Sim) -> None:
        self._called("simulate")
        dofs = sim.model.nv
        for i, data in enumerate(sim.data):
            data.qfrc_applied[:] = sim.forces[i * dofs : (i + 1) * dofs]
            mujoco.mj_step(sim.model, data, nstep=sim.params.substeps)
        sim.forces = np.zeros_like(sim.forces)  # forces act for one step
        sim.simulated = True

    def fetch_results(self, sim: Sim, wait: bool) -> None:
        self._called("fetch_results")
        assert sim.simulated, "results are fetched after simulate"
        sim.simulated = False

    def refresh_dof_state_tensor(self, sim: Sim) -> bool:
        self._called("refresh_dof_state_tensor")
        assert not sim.simulated, "the CPU pipeline fetches results before tensors are refreshed"
        sim.state[:, 0] = np.concatenate([data.qpos for data in sim.data])
        sim.state[:, 1] = np.concatenate([data.qvel for data in sim.data])
        return True

    def set_dof_state_tensor_indexed(self, sim: Sim, states: GymTensor, actors: GymTensor, count: int) -> bool:
        self._called("set_dof_state_tensor_indexed")
        assert actors.values.dtype == np.int32, "indices are of 32 bits"
        assert actors.values.shape == (count,)
        assert states.values.shape == sim.state.shape
        for i in actors.values:
            rows = states.values[i * sim.model.nv : (i + 1) * sim.model.nv]
            sim.data[i].qpos[:], sim.data[i].qvel[:] = rows[:, 0], rows[:, 1]
            mujoco.mj_forward(sim.model, sim.data[i])
        return True

    def destroy_sim(self, sim: Sim) -> None:
        self._called("destroy_sim")
        self.sims.remove(sim)

    def _called(self, name: str) -> None:
        self.calls.append(name)


DOF_MODE_EFFORT = 3


def unwrap_tensor(x: torch.Tensor) -> GymTensor:
    """As `gymtorch.unwrap_tensor`."""
    assert x.is_contiguous(), "Input tensor must be contiguous"
    return GymTensor(x.numpy())


def wrap_tensor(x: GymTensor) -> torch.Tensor:
    """As `gymtorch.wrap_tensor`: shares the memory."""
    return torch.from_numpy(x.values)


def isaac_gym() -> tuple[IsaacGym, Gym]:
    """The modules, and the Gym that `acquire_gym` returns."""
    gym = Gym()
    api = SimpleNamespace(
        acquire_gym=lambda: gym, SimParams=SimParams, Vec3=Vec3, Transform=Transform, PlaneParams=PlaneParams,
        AssetOptions=AssetOptions, UP_AXIS_Z="z", SIM_PHYSX="physx", DOF_MODE_EFFORT=DOF_MODE_EFFORT,
    )  # fmt: skip
    return IsaacGym(api, SimpleNamespace(wrap_tensor=wrap_tensor, unwrap_tensor=unwrap_tensor)), gym
