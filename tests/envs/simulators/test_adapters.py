"""Environments with the interfaces of Isaac Gym, Isaac Lab and rsl_rl as a VecEnv."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from finrl_pod_envs.custom.contract import check_env
from finrl_pod_envs.simulators.adapters import IsaacLabEnv, RslRlEnv, VecTaskEnv

from finrl_pod.errors import ConfigError, InputError
from finrl_pod.protocols import VecEnv
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import PPOConfig
from finrl_pod.types import EnvStep
from tests.envs.simulators.tasks import STEPS, Box, IsaacGymTask, IsaacLabTask, RslRlTask

Members = Sequence[int]


class Unclipped(IsaacGymTask):
    clip = False


ADAPTERS: dict[str, Callable[[Members], VecEnv]] = {
    "VecTask": lambda members: VecTaskEnv(IsaacGymTask(), members=members),
    "VecTask that returns its buffer": lambda members: VecTaskEnv(Unclipped(), members=members),
    "Isaac Lab": lambda members: IsaacLabEnv(IsaacLabTask(keep=True), members=members),
    "rsl_rl": lambda members: RslRlEnv(RslRlTask(keep=True), members=members),
}


def play(env: VecEnv, steps: int = 40, seed: int = 1) -> list[EnvStep]:
    env.reset(seed)
    noise = torch.Generator().manual_seed(2)
    shape = (env.members, env.envs, env.action_size)
    outs = []
    for _ in range(steps):
        out = env.step(torch.randn(shape, generator=noise))
        outs.append(EnvStep(*(x.clone() for x in out)))
    return outs


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_keep_the_contract(name: str) -> None:
    assert check_env(lambda envs, members: ADAPTERS[name](members), envs=6, members=(0,)) == []


@pytest.mark.parametrize("name", ADAPTERS)
def test_time_outs_are_truncations_and_losses_terminations(name: str) -> None:
    outs = play(ADAPTERS[name]((0,)))
    terminated, truncated = torch.stack([o.terminated for o in outs]), torch.stack([o.truncated for o in outs])
    position = torch.stack([o.final_observation[..., 0] for o in outs])
    assert terminated.any()
    assert truncated.any()
    assert torch.equal(terminated, position.abs() > 1)
    for env in range(6):
        ends = (terminated | truncated)[:, 0, env].nonzero().flatten().tolist()
        lengths = [b - a for a, b in zip([-1, *ends], ends, strict=False)]
        assert all(length <= STEPS for length in lengths)
        late = [bool(truncated[end, 0, env]) for end in ends]
        assert late == [
            length == STEPS and not bool(terminated[end, 0, env]) for length, end in zip(lengths, ends, strict=True)
        ]


def test_no_action_is_lost_at_the_reset_of_a_vec_task() -> None:
    """`reset_done` resets in the step that ends an episode; a task left alone would do it in the next step."""
    task = IsaacGymTask()
    outs = play(VecTaskEnv(task))
    assert task.resets_in_steps == 0
    for before, after in itertools.pairwise(outs):
        over = before.terminated | before.truncated
        moved = (after.final_observation[..., 0] - before.observation[..., 0])[over]
        assert (moved.abs() <= 0.2 * (before.observation[..., 1][over].abs() + 1) + 1e-6).all()


@pytest.mark.parametrize(
    "make",
    [lambda: IsaacLabEnv(IsaacLabTask(keep=False)), lambda: RslRlEnv(RslRlTask(keep=False))],
    ids=["Isaac Lab", "rsl_rl"],
)
def test_lost_final_observations_are_those_before_the_step(make: Callable[[], VecEnv]) -> None:
    env = make()
    last = env.reset(1).clone()
    ended = 0
    for _ in range(30):
        out = env.step(torch.zeros(1, 6, 1))
        over = out.terminated | out.truncated
        ended += int(over.sum())
        assert torch.equal(out.final_observation[over], last[over])
        assert torch.equal(out.final_observation[~over], out.observation[~over])
        last = out.observation.clone()
    assert ended > 6


@pytest.mark.parametrize("name", ADAPTERS)
def test_members_share_the_environments(name: str) -> None:
    env = ADAPTERS[name]((0, 1, 2))
    assert (env.members, env.envs, env.member_ids) == (3, 2, (0, 1, 2))
    one, all_of_them = play(ADAPTERS[name]((0,)), 10), play(env, 10)
    for a, b in zip(one, all_of_them, strict=True):
        assert torch.equal(a.reward.flatten(), b.reward.flatten())
        assert b.observation.shape == (3, 2, 2)


def test_tensors_of_the_simulator_are_not_copied() -> None:
    """Only an observation buffer that would be overwritten is."""
    task = Unclipped()
    env, clipped = VecTaskEnv(task), VecTaskEnv(IsaacGymTask())
    for each in (env, clipped):
        each.reset(0)
        each.step(torch.zeros(1, 6, 1))
    out = env.step(torch.zeros(1, 6, 1))
    assert out.reward.data_ptr() == task.rew_buf.data_ptr()
    assert out.observation.data_ptr() != task.obs_buf.data_ptr()
    out = clipped.step(torch.zeros(1, 6, 1))
    assert clipped._last_output is not None
    assert out.observation.data_ptr() == clipped._last_output.data_ptr()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["VecTask that returns its buffer", "rsl_rl"])
def test_ppo_learns_on_it(name: str) -> None:
    """Pushing against the drift keeps the point near zero."""
    env = ADAPTERS[name]((0,))
    config = PPOConfig(policy="mlp", hidden=(16,), horizon=128, epochs=4, group_baseline=False, learning_rate=0.003)
    learner = Learner(env, config, seed=1)
    rewards: list[float] = []
    learner.learn(30_000, callback=lambda _, metrics: rewards.append(float(metrics["reward"][0])))
    assert sum(rewards[-3:]) > 0.5 * sum(rewards[:3])  # rewards are negative


def test_unusable_tasks_are_refused() -> None:
    with pytest.raises(ConfigError, match="must divide the 6 environments of the simulator, got 4"):
        VecTaskEnv(IsaacGymTask(), members=range(4))
    with pytest.raises(InputError, match=r"an action must have shape \(1, 6, 1\), got \(6, 1\)"):
        VecTaskEnv(IsaacGymTask()).step(torch.zeros(6, 1))
    task = IsaacLabTask(keep=True)
    task.single_action_space = Box(2, 3)
    with pytest.raises(ConfigError, match="actions must be a flat Box"):
        IsaacLabEnv(task)

    class Apart(IsaacLabTask):
        def reset(self, seed: int | None = None) -> tuple[dict[str, object], dict[str, object]]:  # type: ignore[override]
            return {"policy": {"joint": torch.zeros(6, 1)}}, {}

    with pytest.raises(ConfigError, match='the observation group "policy" must be one tensor'):
        IsaacLabEnv(Apart(keep=True))
