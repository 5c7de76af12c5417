"""The PettingZoo view: the library's own API tests, and the same numbers as the market."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from finrl_pod_envs.multi_agent.execution import ExecutionMarket
from finrl_pod_envs.multi_agent.making import MakingMarket

from finrl_pod.errors import ConfigError
from finrl_pod.settings.multi_agent import ExecutionMarketConfig, MakingMarketConfig

pytest.importorskip("pettingzoo")
from finrl_pod_envs.multi_agent.pettingzoo_view import ParallelMarket

CONFIG = ExecutionMarketConfig(orders=(1e6, 0.0, -2e5), steps=6)


def views() -> list[ParallelMarket]:
    return [
        ParallelMarket(ExecutionMarket(CONFIG, envs=1)),
        ParallelMarket(MakingMarket(MakingMarketConfig(makers=2, steps=8, horizon=0.01), envs=1)),
    ]


@pytest.mark.parametrize("index", [0, 1])
def test_api_test_of_the_library(index: int) -> None:
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about what is allowed
        parallel_api_test(views()[index], num_cycles=50)
        parallel_seed_test(lambda: views()[index])


def test_same_numbers_as_the_market() -> None:
    view, market = views()[0], ExecutionMarket(CONFIG, envs=1)
    rows, _ = view.reset(seed=3)
    own = market.reset(3).own[0, 0]
    np.testing.assert_array_equal(np.stack(list(rows.values())), own.numpy())
    rng = np.random.default_rng(0)
    for j in range(6):
        action = rng.uniform(-1, 1, (3, 1)).astype(np.float32)
        rows, rewards, over, _, infos = view.step(dict(zip(view.possible_agents, action, strict=True)))
        out = market.step(torch.from_numpy(action)[None, None])
        np.testing.assert_allclose(list(rewards.values()), out.reward[0, 0].numpy())
        np.testing.assert_allclose([x["profit"] for x in infos.values()], out.profit[0, 0].numpy())
        np.testing.assert_array_equal(view.state(), out.final_observation.state[0, 0].numpy())
        assert all(x is (j == 5) for x in over.values())
    assert view.agents == []


def test_many_markets_are_refused() -> None:
    with pytest.raises(ConfigError, match="envs=1"):
        ParallelMarket(ExecutionMarket(CONFIG, envs=2))
