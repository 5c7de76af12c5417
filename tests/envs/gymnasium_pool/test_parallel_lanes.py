"""PettingZoo environments in a pool: order of agents, agents that end early or join late, continuation, refusals."""

from __future__ import annotations

import pytest
import torch
from finrl_pod_envs.gymnasium_pool.env import ParallelMultiAgentEnv

from finrl_pod.errors import ConfigError
from finrl_pod.protocols import ResumableMultiAgentVecEnv
from finrl_pod.rl.multi_agent.views import AgentsView
from finrl_pod.types import JointStep

MODULE = "tests.envs.gymnasium_pool.parallel_envs"


def pool(name: str = "Staggered", envs: int = 2, workers: int = 0) -> ParallelMultiAgentEnv:
    return ParallelMultiAgentEnv(f"{MODULE}:{name}", envs=envs, workers=workers)


def play(env: ParallelMultiAgentEnv, steps: int) -> list[JointStep]:
    env.reset(1)
    return [env.step(torch.full((1, env.envs, 3, 1), 0.5)) for _ in range(steps)]


def test_agents_keep_their_places_and_idle_ones_neither_earn_nor_observe() -> None:
    env = pool()
    assert isinstance(env, ResumableMultiAgentVecEnv)
    assert (env.agents, env.observation_size, env.state_size, env.action_kind) == (3, 3, 9, "direct")
    steps = play(env, 7)
    lane = [
        (
            out.reward[0, 0].tolist(),
            out.terminated[0, 0].tolist(),
            out.truncated[0, 0].tolist(),
            out.idle[0, 0].tolist(),
        )
        for out in steps
    ]
    nobody = [False] * 3
    assert lane[0] == ([0.5, 2.0, 0.0], [False, False, True], nobody, [False, False, True])  # c has not joined yet
    assert lane[1] == ([0.5, 2.0, 0.0], [True, False, True], nobody, [False, False, True])  # b ends
    assert lane[2] == ([0.0, 2.0, 0.0], [True, False, True], nobody, [True, False, True])
    assert lane[3] == ([0.0, 2.0, 2.5], [True, False, False], nobody, [True, False, False])
    assert lane[5] == ([0.0, 2.0, 2.5], [True, False, False], [False, True, True], [True, False, False])
    assert lane[6] == lane[0]
    own = steps[1].observation.own[0, 0]
    assert (own[0] == 0).all()
    assert steps[1].final_observation.own[0, 0, :, :2].tolist() == [[0, 2], [1, 2], [0, 0]]
    assert steps[2].observation.own[0, 0, 2, :2].tolist() == [2, 3]  # c joins
    assert steps[5].final_observation.own[0, 0, 1, :2].tolist() == [1, 6]
    assert steps[5].observation.own[0, 0, :2, 1].tolist() == [0, 0]  # of the next episode
    assert torch.equal(own.flatten(), steps[1].observation.state[0, 0])
    view = AgentsView(env, shared=False, central=True)
    assert torch.equal(view.step(torch.zeros(3, 2, 1)).idle, torch.tensor([[False] * 2, [False] * 2, [True] * 2]))


def test_actions_are_scaled_to_the_bounds_of_each_agent_and_choices_start_where_the_space_does() -> None:
    out = play(pool("make"), 1)[0]
    assert out.reward[0, 0].tolist() == [0.5, 2.0, 0.0]
    env = pool("Choices")
    assert (env.action_kind, env.actions, env.action_size) == ("discrete", 2, 1)
    env.reset(0)
    assert env.step(torch.tensor([1, 0, 0]).view(1, 1, 3, 1).expand(1, 2, 3, 1)).reward[0, 0].tolist() == [2, 2, 0]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_continued_episodes_are_the_same(workers: int) -> None:
    env = pool(workers=workers)
    expected = play(pool(), 9)
    play(env, 4)
    state = {name: x.clone() for name, x in env.checkpoint().items()}
    env.reset(1)
    assert torch.equal(env.resume(state).own, expected[3].observation.own)
    for out in expected[4:]:
        again = env.step(torch.full((1, 2, 3, 1), 0.5))
        assert torch.equal(again.observation.own, out.observation.own)
        assert torch.equal(again.idle, out.idle)
        assert torch.equal(again.reward, out.reward)
    env.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Unequal", "b has 3 observed numbers and actions of 1 numbers, c has 3 observed numbers and actions of 2"),
        ("Silent", "returned no observation of agent a"),
        ("Four", "returns 4 values"),
        ("Turns", "take turns"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        play(pool(name), 1)
