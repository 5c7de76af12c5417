"""Iterations by a graph equal eager ones; what a graph cannot repeat is found and stays eager."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from finrl_pod_envs.trading_envs import PortfolioEnv

from finrl_pod.native.device import as_on_device
from finrl_pod.rl.algorithms.base import Metrics
from finrl_pod.rl.algorithms.ppo import PPO
from finrl_pod.rl.training import graphs
from finrl_pod.rl.training.graphs import GraphedIterations
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import A2CConfig, AgentConfig, SACConfig
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig, PPOConfig
from tests.gpu.recorded_graph import recorded_graph
from tests.markets import random_market

RULES = EnvironmentConfig(envs=8, group=4, window=20)
SMALL = {"horizon": 8, "hidden": (8,), "learning_rate": 1e-2, "learning_rate_schedule": "linear"}
PPO_AGENT = PPOConfig(policy="mlp", minibatches=2, epochs=2, **SMALL)  # type: ignore[arg-type]
AGENTS = {
    "mlp": PPO_AGENT,
    "equivariant": PPOConfig(policy="equivariant", minibatches=2, epochs=2, **SMALL),  # type: ignore[arg-type]
    "autograd": PPOConfig(policy="linear", minibatches=2, epochs=2, clip_range_schedule="linear", **SMALL),  # type: ignore[arg-type]
    "a2c": A2CConfig(policy="mlp", **SMALL),  # type: ignore[arg-type]
}


@pytest.fixture(autouse=True)
def on_device() -> Iterator[None]:
    graphs._warn.cache_clear()
    with as_on_device():
        yield


def make(agent: AgentConfig, rules: EnvironmentConfig = RULES, mandate: MandateConfig | None = None) -> Learner:
    env = PortfolioEnv(random_market(0, bars=80, assets=4, gaps=0.1), rules, members=(0, 1), dtype=torch.float64,
                       mandate=mandate or MandateConfig())  # fmt: skip
    return Learner(env, agent, seed=5, dtype=torch.float64)


def learn(learner: Learner, iterations: int, **options: Any) -> list[Metrics]:
    metrics: list[Metrics] = []
    learner.learn(iterations * learner.iteration_samples, callback=lambda _, m: metrics.append(m), **options)
    return metrics


def assert_same(one: Learner, other: Learner) -> None:
    expected, found = one.checkpoint(), other.checkpoint()
    assert expected.keys() == found.keys()
    for name, x in expected.items():
        assert torch.equal(x, found[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
def test_replayed_iterations_equal_eager_ones(agent: str) -> None:
    eager, graphed = make(AGENTS[agent]), make(AGENTS[agent])
    graph = graphed.use_graphs(recorded_graph)
    expected, found = learn(eager, 8), learn(graphed, 8)
    assert graph.is_captured
    assert_same(eager, graphed)
    for one, other in zip(expected, found, strict=True):
        for name, column in one.items():
            torch.testing.assert_close(other[name], column, rtol=0, atol=0, equal_nan=True)


@pytest.mark.slow
def test_rates_by_age_settings_and_snapshots_reach_a_graph() -> None:
    eager, graphed = make(PPO_AGENT), make(PPO_AGENT)
    graph = graphed.use_graphs(recorded_graph)
    for learner in (eager, graphed):
        learn(learner, 4, schedule=lambda age: 1 / (1 + age))
        learner.algorithm.settings["gamma"].fill_(0.9)
        learner.restore(learner.snapshot(1), 0)
        learn(learner, 2, schedule=lambda age: 1 / (1 + age))
    assert graph.is_captured
    assert_same(eager, graphed)


@pytest.mark.slow
def test_a_checkpoint_continues_a_graph() -> None:
    eager, graphed = make(PPO_AGENT), make(PPO_AGENT)
    graph = graphed.use_graphs(recorded_graph)
    for learner in (eager, graphed):
        learn(learner, 4)
        state = learner.checkpoint()
        learn(learner, 2)
        learner.resume(state)
        learn(learner, 3)
    assert graph.is_captured
    assert_same(eager, graphed)


@pytest.mark.slow
def test_a_replaced_setting_and_a_reset_are_recorded_again() -> None:
    eager, graphed = make(PPO_AGENT), make(PPO_AGENT)
    graph = graphed.use_graphs(recorded_graph)
    for learner in (eager, graphed):
        learn(learner, 4)
        learner.algorithm.settings["gamma"] = torch.full((2,), 0.5, dtype=torch.float64)
        learn(learner, 1)
    assert not graph.is_captured
    for learner in (eager, graphed):
        learn(learner, 3)
        learner.collector.observe(learner.env.reset(9))
        learn(learner, 6)
    assert graph.is_captured
    assert_same(eager, graphed)


class _Baked(PPO):
    """The iteration count is a Python number, which a graph repeats unchanged."""

    count = 0

    def iterate(self, collector: Any, rate_factor: Any) -> Metrics:
        self.count += 1
        return super().iterate(collector, rate_factor * (1 + 0.1 * (self.count % 2)))


class _Waiting(PPO):
    def iterate(self, collector: Any, rate_factor: Any) -> Metrics:
        float(self.settings["gamma"].sum())
        return super().iterate(collector, rate_factor)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "reason"), [(_Baked, "replayed iterations give another"), (_Waiting, "waits for the device")]
)
def test_what_a_graph_cannot_repeat_stays_eager(kind: type[PPO], reason: str, caplog: pytest.LogCaptureFixture) -> None:
    eager, graphed = make(PPO_AGENT), make(PPO_AGENT)
    for learner in (eager, graphed):
        learner.algorithm.__class__ = kind
    graph = graphed.use_graphs(recorded_graph)
    with caplog.at_level(logging.WARNING):
        learn(graphed, 6)
    assert reason in graph.refusal
    assert [reason in record.message for record in caplog.records] == [True]
    if kind is _Waiting:
        learn(eager, 6)
        assert_same(eager, graphed)


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        (SACConfig(policy="mlp", hidden=(8,)), "SAC decides on the host"),
    ],
)
def test_algorithms_that_decide_on_the_host_are_named(agent: AgentConfig, reason: str) -> None:
    learner = make(agent)
    assert (
        reason
        in GraphedIterations(
            learner.algorithm, learner.collector, recorded_graph, learner.checkpoint, learner.resume
        ).refusal
    )
