"""Copies of everything that the Python API returns: by fork, spawn, joblib, cloudpickle and deepcopy."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from finrl_pod_app.api.results import CheckResult
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv

import finrl_pod as fp
from finrl_pod.errors import InputError
from finrl_pod.settings.algorithm_configs import A2CConfig
from tests.app.small_run import isolated_folders

pytestmark = pytest.mark.slow

SECONDS = 120
PERIOD = {"start": "2019-09-02", "end": "2019-09-30"}


def sharpe(target: Any, prices: Any) -> float:
    return fp.backtest(target, prices, **PERIOD).metrics["sharpe"]


def random_steps(env: Any) -> list[float]:
    """Rewards of a Gymnasium environment under the same random actions."""
    rng = np.random.default_rng(0)
    return [float(np.sum(env.step(rng.uniform(-1, 1, env.action_space.shape))[1])) for _ in range(4)]


def pool_steps(env: GymnasiumVecEnv) -> list[float]:
    action = torch.ones(env.members, env.envs, env.action_size)
    return [float(env.step(action).observation.sum()) for _ in range(4)]


def continued_training(learner: Any) -> list[float]:
    metrics = learner.learn(learner.iteration_samples)
    return [float(values.double().sum()) for values in metrics.values()]


def market_steps(env: Any) -> list[float]:
    env.reset(3)
    action = torch.linspace(-1, 1, env.action_size).expand(env.members, env.envs, -1)
    return [float(env.step(action).reward.double().sum()) for _ in range(4)]


# What a copy computes, by the name of the object.
VALUES: Mapping[str, Callable[[Any], Any]] = {
    "prices": lambda panel: float(np.nansum(panel.close)),
    "config": lambda config: config.environment.cost_bps,
    "market": lambda market: sharpe("equal_weight", market),
    "market tensor": lambda market: float(market.features.double().sum()),
    "gym": random_steps,
    "gym vector": random_steps,
    "environment": market_steps,
    "pool": pool_steps,
    "agent": lambda agent: sharpe(agent, agent.market),
    "learner": continued_training,
    "backtest": lambda result: float(result.to_frame().sum().sum()),
    "strategy": lambda strategy: strategy.feature_names,
    "orders": lambda orders: float(orders.select_dtypes("number").sum().sum()),
    "check": lambda result: str(result),
    "store": lambda store: str(store.root),
}


def values_of(objects: Mapping[str, Any]) -> dict[str, Any]:
    return {name: VALUES[name](thing) for name, thing in objects.items()}


def send_values(connection: Any, objects: Mapping[str, Any]) -> None:
    connection.send(values_of(objects))


def send_forked_values(connection: Any, objects: Mapping[str, Any]) -> None:
    connection.send(in_process(objects, "fork"))


def in_process(objects: Mapping[str, Any], method: str, target: Callable[..., None] = send_values) -> dict[str, Any]:
    """The values that another process computes. method: how it starts."""
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(sender, objects))  # type: ignore[attr-defined]
    process.start()
    try:
        assert receiver.poll(SECONDS), f"a process that was started by {method} hangs"
        return dict(receiver.recv())
    finally:
        process.kill()
        process.join()


WAYS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "deepcopy": lambda objects: values_of(copy.deepcopy(objects)),
    "cloudpickle": lambda objects: values_of(pickle.loads(cloudpickle.dumps(objects))),  # noqa: S301
    # From a process without the threads of other tests, which no fork has.
    "fork": lambda objects: in_process(objects, "spawn", send_forked_values),
    "spawn": lambda objects: in_process(objects, "spawn"),
    "joblib": lambda objects: joblib.Parallel(n_jobs=2, timeout=SECONDS)([joblib.delayed(values_of)(objects)])[0],
}


def make_objects() -> dict[str, Any]:
    """One of each kind, in the middle of its work."""
    days = pd.bdate_range("2012-01-02", periods=2020)
    closes = 50 * np.exp(np.random.default_rng(5).normal(3e-4, 0.01, (len(days), 3)).cumsum(0))
    prices = fp.load_prices(pd.DataFrame(closes, days, ["AAPL", "KO", "XOM"]))
    market = fp.make_market(prices, settings={"agent.algorithm": "closed_form", "environment.envs": 2})
    agent = fp.train(market, progress=False)
    gym = market.gym()
    gym.reset(seed=3)
    vector = market.gym_vector(envs=2)
    vector.reset(seed=3)
    pool = GymnasiumVecEnv("gym:Pendulum-v1", envs=2)
    pool.reset(seed=3)
    pool_steps(pool)
    learner = fp.Learner(market.environment(), A2CConfig(hidden=(8,), horizon=8), seed=1)
    learner.learn(learner.iteration_samples)
    return {
        "prices": prices,
        "config": market.config,
        "market": market,
        "market tensor": market.market,
        "gym": gym,
        "gym vector": vector,
        "environment": market.environment(),
        "pool": pool,
        "agent": agent,
        "learner": learner,
        "backtest": fp.backtest("equal_weight", market, **PERIOD),
        "strategy": agent.strategy(),
        "orders": fp.orders(agent, cash=1000.0, date="2019-09-03"),
        "check": CheckResult({"target": "x", "kind": "feature", "passed": True, "faults": []}),
        "store": fp.Store(),
    }


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with isolated_folders(tmp_path_factory.mktemp("copies")):
        yield make_objects()


@pytest.fixture(scope="module")
def original_values(objects: dict[str, Any]) -> dict[str, Any]:
    """The values of equal objects: those that are copied stay as they are."""
    return values_of(make_objects() | {"store": objects["store"]})


@pytest.mark.parametrize("way", WAYS)
def test_copies_have_the_values_of_the_original(
    way: str, objects: dict[str, Any], original_values: dict[str, Any]
) -> None:
    values = WAYS[way](objects)
    assert set(values) == set(original_values)
    for name, value in values.items():
        assert value == pytest.approx(original_values[name]), name


def test_copy_of_a_pool_has_workers_of_its_own() -> None:
    with contextlib.closing(GymnasiumVecEnv("gym:Pendulum-v1", envs=2, workers=1)) as pool:
        pool.reset(seed=3)
        pool_steps(pool)
        with contextlib.closing(copy.deepcopy(pool)) as duplicate:
            assert not set(duplicate.pids) & set(pool.pids)
            assert pool_steps(duplicate) == pool_steps(pool)


def test_loggers_refuse_to_be_copied(tmp_path: Path) -> None:
    with fp.open_logger("tensorboard", tmp_path) as logger:
        for duplicate in (copy.deepcopy, pickle.dumps, cloudpickle.dumps):
            with pytest.raises(InputError, match=r"a logger cannot be copied; open another one with fp\.open_logger"):
                duplicate(logger)
