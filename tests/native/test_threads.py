"""Loops over single bars run on one thread, and the count of the session is restored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.audit.pipeline import rollout
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.paper_backtest import backtest_paper
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.market.orders import SizingRules
from finrl_pod.native.device import one_thread, restored_threads
from tests.data.panels import panel
from tests.evaluate.audit.pipelines import environment

PRICES = panel(np.exp(np.random.default_rng(0).normal(0, 0.01, (60, 3)).cumsum(0)))
MARKET = build_market(PRICES, ("return_1",), (0, 59))


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


class Counts:
    """Equal weights; notes torch's threads at every decision."""

    name, lookback, feature_names = "counts", 5, ()

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def target_weights(self, window: Any, positions: Any) -> Any:
        self.seen.add(torch.get_num_threads())
        return np.full(3, 1 / 3)


class Fails(Counts):
    def target_weights(self, window: Any, positions: Any) -> Any:
        raise ValueError("no weights")


def test_strategies_decide_on_one_thread() -> None:
    strategy = Counts()
    backtest(strategy, PRICES, MarketPeriod(MARKET, 10, 50, ExecutionRules(), 1e6))
    backtest_paper(strategy, PRICES, MARKET, 10, 50, SizingRules(), 1e6, "close")
    assert strategy.seen == {1}
    with pytest.raises(InputError, match="no weights"):
        backtest(Fails(), PRICES, MarketPeriod(MARKET, 10, 50, ExecutionRules(), 1e6))


def test_audited_environments_step_on_one_thread() -> None:
    env, seen = environment()(MARKET, 10, 50), set()
    step = env.step

    def counted(action: Any) -> Any:
        seen.add(torch.get_num_threads())
        return step(action)

    env.step = counted  # type: ignore[method-assign]
    rollout(env, 3)
    assert seen == {1}


def test_thread_counts_are_restored() -> None:
    with restored_threads():
        torch.set_num_threads(1)
    with one_thread():
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
