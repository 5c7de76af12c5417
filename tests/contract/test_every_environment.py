"""The contract that learners rely on (`custom.contract`), for every VecEnv of the project."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import finrl_pod_envs
import pytest
from finrl_pod_envs.custom.contract import check_env
from finrl_pod_envs.custom.episode_recorder import ResumableEpisodeRecorder, record_episodes
from finrl_pod_envs.custom.template import Drift
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv, ParallelMultiAgentEnv
from finrl_pod_envs.multi_agent.execution import ExecutionMarket
from finrl_pod_envs.multi_agent.making import MakingMarket
from finrl_pod_envs.simulators.adapters import IsaacLabEnv, RslRlEnv, VecTaskEnv
from finrl_pod_envs.trading_envs import DiscreteTradingEnv, PortfolioEnv, StockTradingEnv, make_env
from torch import Tensor

from finrl_pod.protocols import VecEnv
from finrl_pod.settings.multi_agent import ExecutionMarketConfig, MakingMarketConfig
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import NOTHING, EnvStep
from tests.envs.simulators.tasks import IsaacGymTask, IsaacLabTask, RslRlTask
from tests.markets import random_market

MARKET = random_market(4, gaps=0.1, ends={0: 20}, starts={1: 5})
Make = Callable[[int, Sequence[int]], VecEnv]


class Case(NamedTuple):
    """cls: the class. make: (environments, member ids) -> environment. envs: per member. members: ids.

    Simulators draw the numbers of all members from one stream, so that only one member can be repeated by itself.
    """

    cls: type
    make: Make
    envs: int = 4
    members: tuple[int, ...] = (0, 5)


def market(kind: str, mandate: MandateConfig | None = None) -> Make:
    config = EnvironmentConfig(kind=kind, window=8, group=2)  # type: ignore[arg-type]
    return lambda envs, members: make_env(MARKET, config, members=members, envs=envs, mandate=mandate)


def pool(name: str, workers: int) -> Make:
    return lambda envs, members: GymnasiumVecEnv(name, envs=envs, members=members, workers=workers)


class Joint:
    """A market with M agents as P x (E * M) environments: all agents of a market start and end together."""

    action_kind, actions = "direct", 0

    def __init__(self, env: Any) -> None:
        self.env, self.members, self.envs = env, env.members, env.envs * env.agents
        self.member_ids, self.device = env.member_ids, env.device
        self.observation_size, self.action_size = env.observation_size, env.action_size

    def reset(self, seed: int) -> Tensor:
        return self._flat(self.env.reset(seed).own)

    def step(self, action: Tensor) -> EnvStep:
        out = self.env.step(action.view(self.members, self.env.envs, self.env.agents, -1))
        assert out.profit is NOTHING or out.profit.shape == out.reward.shape
        flags = (x.reshape(self.members, self.envs) for x in (out.terminated, out.truncated))
        now, final = (self._flat(x.own) for x in (out.observation, out.final_observation))
        return EnvStep(now, out.reward.view(self.members, self.envs), *flags, final)

    def _flat(self, x: Tensor) -> Tensor:
        return x.reshape(self.members, self.envs, -1)


CASES = {
    "portfolio": Case(PortfolioEnv, market("portfolio")),
    "portfolio under a mandate": Case(PortfolioEnv, market("portfolio", MandateConfig())),
    "stock_trading": Case(StockTradingEnv, market("stock_trading")),
    "discrete": Case(DiscreteTradingEnv, market("discrete")),
    "Gymnasium in this process": Case(GymnasiumVecEnv, pool("gym:CartPole-v1", 0)),
    "Gymnasium in workers": Case(GymnasiumVecEnv, pool("gym:CartPole-v1", 2)),
    "template": Case(Drift, lambda envs, members: Drift(envs=envs, members=members)),
    "recorded": Case(
        ResumableEpisodeRecorder, lambda envs, members: record_episodes(Drift(envs=envs, members=members))
    ),
    "VecTask": Case(VecTaskEnv, lambda envs, members: VecTaskEnv(IsaacGymTask(), members=members), 6, (0,)),
    "Isaac Lab": Case(IsaacLabEnv, lambda _, members: IsaacLabEnv(IsaacLabTask(keep=True), members=members), 6, (0,)),
    "rsl_rl": Case(RslRlEnv, lambda _, members: RslRlEnv(RslRlTask(keep=True), members=members), 6, (0,)),
    "agents in an execution market": Case(
        ExecutionMarket,
        lambda envs, members: Joint(
            ExecutionMarket(ExecutionMarketConfig(orders=(1e6, -5e5), order_std=1e5), envs=envs, members=members)
        ),
    ),
    "competing market makers": Case(
        MakingMarket,
        lambda envs, members: Joint(MakingMarket(MakingMarketConfig(makers=2), envs=envs, members=members)),
    ),
    "agents of PettingZoo": Case(
        ParallelMultiAgentEnv,
        lambda envs, members: Joint(
            ParallelMultiAgentEnv("tests.envs.gymnasium_pool.parallel_envs:Staggered", envs=envs, members=members)
        ),
    ),
}


def concrete_environments() -> set[type]:
    """All classes of finrl_pod_envs whose step() returns an EnvStep or a JointStep."""
    found: set[type] = set()
    for module in pkgutil.walk_packages(finrl_pod_envs.__path__, "finrl_pod_envs."):
        for value in vars(import_module(module.name)).values():
            is_own = inspect.isclass(value) and value.__module__ == module.name
            step = getattr(value, "step", None) if is_own else None
            if step is None or not hasattr(value, "reset") or inspect.isabstract(value):
                continue
            if inspect.signature(step).return_annotation in ("EnvStep", "JointStep") and not getattr(
                value, "_is_protocol", False
            ):
                found.add(value)
    return found


@pytest.mark.slow
def test_every_environment_is_covered() -> None:
    """A class counts as covered by itself or by a subclass of it."""
    covered: set[Any] = {base for case in CASES.values() for base in case.cls.__mro__}
    assert {cls.__name__ for cls in concrete_environments() - covered} == set()
    assert len(concrete_environments()) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_environment_keeps_the_contract(name: str) -> None:
    case = CASES[name]
    assert check_env(case.make, envs=case.envs, members=case.members) == []
