"""Contract of every MultiAgentVecEnv and of its views as VecEnvs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from finrl_pod_envs.multi_agent.execution import ExecutionMarket
from finrl_pod_envs.multi_agent.making import MakingMarket

from finrl_pod.protocols import CentralCriticVecEnv, JointVecEnv, MultiAgentVecEnv, ResumableMultiAgentVecEnv, VecEnv
from finrl_pod.rl.multi_agent.views import AgentsView
from finrl_pod.settings.multi_agent import ExecutionMarketConfig, MakingMarketConfig
from finrl_pod.types import JointObservation, JointStep

P, E = 2, 3
MARKETS: dict[str, Callable[[], Any]] = {
    "execution": lambda: ExecutionMarket(
        ExecutionMarketConfig(orders=(1e6, 0.0), steps=4, order_std=1e5), envs=E, members=(0, 5)
    ),
    "desk on two assets": lambda: ExecutionMarket(
        ExecutionMarketConfig(
            orders=(1e6, 2e5, -1e5), assets=2, steps=5, cooperation=1.0, observe_price=True, observe_total=True,
            maker_spread=0.05, maker_skew=1e-7,
        ),
        envs=E, members=(0, 5),
    ),
    "making": lambda: MakingMarket(MakingMarketConfig(steps=4, horizon=0.02), envs=E, members=(0, 5)),
    "makers and informed traders": lambda: MakingMarket(
        MakingMarketConfig(makers=3, steps=4, horizon=0.05, informed_intensity=100.0), envs=E, members=(0, 5)
    ),
}  # fmt: skip


@pytest.fixture(params=MARKETS)
def market(request: pytest.FixtureRequest) -> MultiAgentVecEnv:
    env: MultiAgentVecEnv = MARKETS[request.param]()
    return env


def run(env: MultiAgentVecEnv, seed: int, steps: int = 9) -> list[JointStep]:
    env.reset(seed)
    stream = torch.Generator().manual_seed(1)
    shape = (P, E, env.agents, env.action_size)
    return [env.step(torch.rand(shape, generator=stream) * 2 - 1) for _ in range(steps)]


def tensors(out: JointStep) -> list[torch.Tensor]:
    return [x for part in out for x in (part if isinstance(part, tuple) else (part,))]


def test_shapes_dtypes_and_finite_numbers(market: MultiAgentVecEnv) -> None:
    def check(observation: JointObservation) -> None:
        assert observation.own.shape == (P, E, market.agents, market.observation_size)
        assert observation.state.shape == (P, E, market.state_size)
        assert all(x.dtype == torch.float32 and bool(torch.isfinite(x).all()) for x in observation)

    check(market.reset(0))
    for out in run(market, 0):
        check(out.observation)
        check(out.final_observation)
        for x in (out.reward, out.profit):
            assert x.shape == (P, E, market.agents)
            assert torch.isfinite(x).all()
        assert out.terminated.shape == out.truncated.shape == (P, E, market.agents)
        assert out.terminated.dtype == out.truncated.dtype == torch.bool


def test_equal_seeds_give_equal_episodes(market: MultiAgentVecEnv) -> None:
    first, second, other = (run(market, seed) for seed in (1, 1, 2))
    for a, b in zip(first, second, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(tensors(a), tensors(b), strict=True))
    assert any(not torch.equal(a.profit, b.profit) for a, b in zip(first, other, strict=True))


def test_episodes_end_and_restart_in_the_same_step(market: MultiAgentVecEnv) -> None:
    ended = 0
    for out in run(market, 0, 12):
        ended += int(out.terminated.sum())
        assert torch.equal(out.observation.own[~out.terminated], out.final_observation.own[~out.terminated])
        assert (out.final_observation.own[out.terminated][..., 0] == 0).all()  # no time is left
        assert (out.observation.own[out.terminated][..., 0] == 1).all()
    assert ended >= 2 * P * E


def test_continued_episodes_are_the_same(market: MultiAgentVecEnv) -> None:
    assert isinstance(market, ResumableMultiAgentVecEnv)
    first = run(market, 3, 6)
    run(market, 3, 3)
    state = {name: x.clone() for name, x in market.checkpoint().items()}
    run(market, 5)
    market.reset(3)
    assert all(map(torch.equal, market.resume(state), first[2].observation))
    stream = torch.Generator().manual_seed(1)
    actions = [torch.rand((P, E, market.agents, market.action_size), generator=stream) * 2 - 1 for _ in range(6)]
    for action, expected in zip(actions[3:], first[3:], strict=True):
        out = market.step(action)
        assert all(torch.equal(x, y) for x, y in zip(tensors(out), tensors(expected), strict=True))


def test_extreme_and_invalid_actions_are_survived(market: MultiAgentVecEnv) -> None:
    market.reset(0)
    for value in (1e9, -1e9, float("nan"), float("inf")):
        out = market.step(torch.full((P, E, market.agents, market.action_size), value))
        assert all(bool(torch.isfinite(x).all()) for x in tensors(out))


@pytest.mark.parametrize("central", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_views_are_vec_envs_with_the_same_numbers(market: MultiAgentVecEnv, shared: bool, central: bool) -> None:
    view = AgentsView(market, shared=shared, central=central)
    assert isinstance(view, VecEnv)
    assert isinstance(view, CentralCriticVecEnv)
    assert isinstance(view, JointVecEnv)
    assert (view.critic_only > 0) is central
    m = market.agents
    assert (view.members, view.envs) == ((P, E * m) if shared else (P * m, E))
    assert len(set(view.member_ids)) == view.members
    joint = run(market, 4)
    assert view.reset(4).shape == (view.members, view.envs, view.observation_size)
    stream = torch.Generator().manual_seed(1)
    for expected in joint:
        action = torch.rand((P, E, m, view.action_size), generator=stream) * 2 - 1
        assert torch.equal(view.joint(view.by_agent(action)), action)
        out = view.step(view.by_agent(action))
        assert torch.equal(view.joint(out.reward), expected.reward)
        assert torch.equal(view.joint(out.terminated), expected.terminated)
        own, state = out.observation.split(
            [market.observation_size, view.observation_size - market.observation_size], -1
        )
        assert torch.equal(view.joint(own), expected.observation.own)
        if central:
            assert torch.equal(view.joint(state), expected.observation.state.unsqueeze(2).expand(P, E, m, -1))
