"""Python API: train, save, load, act, backtest, warm start."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finrl_pod_app.api import setup as api
from finrl_pod_app.api.evaluation import backtest
from finrl_pod_app.api.training import train

from finrl_pod.errors import ConfigError, InputError, RunError
from finrl_pod.rl.networks.policies import register_policy
from finrl_pod.settings.algorithm_registry import register_algorithm
from finrl_pod.settings.run import DataConfig, EnvironmentConfig, FeatureConfig, PPOConfig, RunConfig

CONFIG = RunConfig(
    data=DataConfig(symbols=("AAPL", "JNJ", "XOM")),
    features=FeatureConfig(("return_1", "return_21")),
    environment=EnvironmentConfig(envs=16, group=4, window=64),
    agent=PPOConfig(horizon=16, minibatches=4, hidden=(8, 8)),
)


@pytest.fixture(scope="module")
def setup() -> api.Setup:
    return api.prepare(CONFIG, device="cpu")


@pytest.mark.slow
def test_agent_is_trained_saved_loaded_and_backtested(setup: api.Setup, tmp_path: Path) -> None:
    calls: list[int] = []
    agent = train(setup, 1024, seed=3, callback=lambda a, _: calls.append(a.samples[0]), progress=False).learner
    assert calls == [256, 512, 768, 1024]
    api.save(agent, tmp_path / "one", setup)
    strategy = api.load(tmp_path / "one")
    result = backtest(strategy, setup).result
    assert np.isfinite(result.equity).all()
    assert result.times[0] >= np.datetime64("2016-01-01")
    assert result.times[-1] <= np.datetime64("2018-12-31")
    again = backtest(api.load(tmp_path / "one.json"), setup).result
    np.testing.assert_array_equal(result.equity, again.equity)


def test_setup_shows_its_prices_and_splits(setup: api.Setup) -> None:
    shown = setup._repr_html_()
    assert "<td>3: AAPL, JNJ, XOM</td>" in shown
    assert "<td>validation</td><td>2016-01-04</td><td>2018-12-21</td><td>749</td>" in shown
    assert "2 features: return_1, return_21. Agent: ppo." in shown


def test_warm_start_continues_from_the_saved_weights(setup: api.Setup, tmp_path: Path) -> None:
    agent = train(setup, 256, seed=3, progress=False).learner
    api.save(agent, tmp_path / "one", setup)
    more = train(setup, 256, seed=4, warm_start=tmp_path / "one", progress=False).learner
    fresh = train(setup, 256, seed=4, progress=False).learner
    assert more.samples == [512]
    assert not torch.equal(more.algorithm.parameters.flat, fresh.algorithm.parameters.flat)


@pytest.mark.slow
def test_several_agents_are_averaged(setup: api.Setup, tmp_path: Path) -> None:
    for seed in (1, 2):
        api.save(train(setup, 256, seed=seed, progress=False).learner, tmp_path / f"a{seed}", setup)
    both = backtest(api.load(tmp_path / "a1", tmp_path / "a2"), setup)
    assert both.result.name == "a1+a2"


def test_baselines_run_by_name_and_splits_are_checked(setup: api.Setup) -> None:
    assert backtest("equal_weight", setup).metrics["sharpe"] > 0
    with pytest.raises(InputError, match="split must be one of train, validation, test, all"):
        backtest("equal_weight", setup, split="tomorrow")  # type: ignore[arg-type]


@pytest.mark.slow
def test_strategy_is_any_object_with_target_weights(setup: api.Setup) -> None:
    class Half:
        def target_weights(self, window: Any, positions: Any) -> Any:
            return np.full(len(window.symbols), 0.5 / len(window.symbols))

    assert backtest(Half(), setup).result.equity[-1] > 0


def test_json_suffix_is_optional(setup: api.Setup, tmp_path: Path) -> None:
    assert api.save(train(setup, 256, progress=False).learner, tmp_path / "one.json", setup).name == "one.json"
    assert {path.name for path in tmp_path.iterdir()} == {"one.json", "one.safetensors"}
    assert api.load(tmp_path / "one.json").groups


def test_incompatible_agent_is_refused(setup: api.Setup, tmp_path: Path) -> None:
    api.save(train(setup, 256, progress=False).learner, tmp_path / "one", setup)
    other = dataclasses.replace(CONFIG, agent=dataclasses.replace(CONFIG.agent, hidden=(16, 16)))
    with pytest.raises(RunError, match="does not fit"):
        train(api.prepare(other, device="cpu"), 256, warm_start=tmp_path / "one", progress=False)


def test_what_is_no_algorithm_or_policy_is_not_registered() -> None:
    with pytest.raises(ConfigError, match=r"the algorithm zz must be a class .* got 3"):
        register_algorithm("zz")(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the policy zz has no init"):
        register_policy("zz")(dict)
    for register in (register_algorithm, register_policy):
        with pytest.raises(InputError, match="needs a name in quotes"):
            register(dict)  # type: ignore[arg-type]


@pytest.mark.slow
def test_agent_with_a_turbulence_limit_is_backtested(tmp_path: Path) -> None:
    environment = dataclasses.replace(CONFIG.environment, turbulence_limit=300.0)
    calm = api.prepare(dataclasses.replace(CONFIG, environment=environment), device="cpu")
    api.save(train(calm, 256, seed=3, progress=False).learner, tmp_path / "one", calm)
    assert np.isfinite(backtest(api.load(tmp_path / "one"), calm).result.equity).all()
