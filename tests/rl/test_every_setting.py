"""Every setting of every trainer, from the fields of its record, changes the weights, is refused, or is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv
from finrl_pod_envs.multi_agent.execution import ExecutionMarket
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.errors import ConfigError
from finrl_pod.protocols import VecEnv
from finrl_pod.rl.algorithms.idle_settings import idle_settings
from finrl_pod.rl.multi_agent.views import AgentsView
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import (
    ActorCriticConfig,
    AgentConfig,
    ClosedFormConfig,
    DifferentiableConfig,
    DQNConfig,
    OffPolicyConfig,
    OnPolicyConfig,
    PPOConfig,
    REDQConfig,
)
from finrl_pod.settings.algorithm_registry import ALGORITHMS, algorithm_info
from finrl_pod.settings.constraints import describe_settings
from finrl_pod.settings.multi_agent import ExecutionMarketConfig
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig, parse
from finrl_pod.types import Tensor
from tests.markets import random_market

SAMPLES = 24  # of a member; a buffer of 18 items wraps
REPLAY = {"batch_size": 6, "buffer_size": 18, "learning_starts": 8, "gradient_steps": 2, "tau": 0.1}
BASES: Mapping[type[AgentConfig], dict[str, Any]] = {
    ClosedFormConfig: {},
    OnPolicyConfig: {"horizon": 4},
    REDQConfig: {**REPLAY, "critics": 3, "policy_delay": 2},
    DQNConfig: {**REPLAY, "exploration_samples": 30},
    OffPolicyConfig: REPLAY,
    DifferentiableConfig: {"horizon": 4},
}
# Settings with which others have an effect.
RICH: Mapping[type[AgentConfig], dict[str, Any]] = {
    OnPolicyConfig: {"h_term": 0.5, "h_steps": 2, "h_trajectories": 2, "h_buffer": 4, "use_sde": True},
    ActorCriticConfig: {"critics": 4, "critic_rule": "subset"},
}
MARKET: Callable[[], Any] = lambda: random_market(5, bars=60, leak=True)  # noqa: E731


def flat(name: str) -> VecEnv:
    return GymnasiumVecEnv("gym:Pendulum-v1", envs=2)


def market(name: str) -> VecEnv:
    kind = "discrete" if algorithm_info(name).actions == "discrete" else "portfolio"
    rules = EnvironmentConfig(kind=kind, window=8, envs=4, group=2)
    mandate = MandateConfig() if algorithm_info(name).kind == "solved" else None
    return make_env(MARKET(), rules, mandate=mandate)


def joint(name: str) -> VecEnv:
    agents = ExecutionMarket(ExecutionMarketConfig(orders=(1e6, -5e5), steps=5, order_std=1e5), envs=2)
    return AgentsView(agents, shared=False, central=True)


CASES = [
    *[
        ("flat", name, False)
        for name, info in ALGORITHMS.items()
        if info.actions != "discrete" and not info.needs_market
    ],
    *[("market", name, False) for name, info in ALGORITHMS.items() if info.actions == "discrete" or info.needs_market],
    ("joint", "maddpg", False),
    ("joint", "ppo", False),
    ("flat", "ppo", True),
    ("flat", "td3", True),
    ("market", "ppo", True),
]
ENVIRONMENTS: Mapping[str, Callable[[str], VecEnv]] = {"flat": flat, "market": market, "joint": joint}


def base_config(place: str, name: str, *, rich: bool) -> AgentConfig:
    record = algorithm_info(name).config_class
    settings: dict[str, Any] = {"algorithm": name, "hidden": (4,)}
    if name != "closed_form":
        settings |= {"policy": "equivariant" if place == "market" else "mlp", "learning_rate": 1e-2}
    tables = (BASES, RICH) if rich else (BASES,)
    for table in tables:
        settings |= next((values for kind, values in table.items() if issubclass(record, kind)), {})
    if issubclass(record, PPOConfig):
        settings |= {"minibatches": 2, "clip_range": 0.01}
    if rich and place == "market":
        settings |= {"encoder": "gru", "lookback": 3, "encoder_size": 2, "use_sde": False}
    fields = {field.name for field in dataclasses.fields(record)}
    return record(**{key: value for key, value in settings.items() if key in fields})


def candidates(config: AgentConfig, name: str) -> Iterator[Any]:
    """Other values of a setting."""
    value = getattr(config, name)
    choices = describe_settings(type(config))[name].choices
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (x for x in (2 * value + 1, 1, value // 2) if x != value)
    elif isinstance(value, float):
        yield from (0.37, 1e-6)
    elif isinstance(value, tuple):
        yield (5,)
    elif name == "policy":
        yield from (x for x in ("mlp", "linear", "equivariant") if x != value)
    else:
        yield from (x for x in choices if x != value)


def weights_after(env: VecEnv, config: AgentConfig) -> dict[str, Tensor]:
    learner = Learner(env, config, seed=1)
    learner.learn(SAMPLES)
    return learner.algorithm.member(0)[0]


def is_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(x, other[name]) for name, x in one.items())


def fault(env: VecEnv, config: AgentConfig, name: str, plain: Mapping[str, Tensor]) -> str | None:
    """What is wrong with a setting; None if a change of it changes the weights, is refused, or is named."""
    faults = []
    for value in candidates(config, name):
        try:
            changed = dataclasses.replace(config, **{name: value})
            is_same = is_equal(plain, weights_after(env, changed))
        except ConfigError:
            continue
        is_named = name in idle_settings(changed, env)
        if is_named and not is_same:
            return f"{name} = {value} is named, but changes the weights"
        if is_named or not is_same:
            return None
        faults.append(f"{name} = {value} changes nothing")
    return faults[-1] if faults else None


@pytest.mark.slow
@pytest.mark.parametrize(("place", "name", "rich"), CASES)
def test_every_setting_has_an_effect_or_is_named(place: str, name: str, rich: bool) -> None:
    config = base_config(place, name, rich=rich)
    env = ENVIRONMENTS[place](name)
    plain = weights_after(env, config)
    assert is_equal(plain, weights_after(env, config))
    faults = [fault(env, config, field.name, plain) for field in dataclasses.fields(config)]
    assert [text for text in faults if text] == []


@pytest.mark.parametrize("name", [*ALGORITHMS, "maddpg"])
def test_unknown_words_are_refused(name: str) -> None:
    settings = describe_settings(algorithm_info(name).config_class)
    texts = [key for key, entry in settings.items() if entry.type == "str" and key not in ("algorithm", "policy")]
    for key in texts:
        with pytest.raises(ConfigError, match=key):
            parse({"agent": {"algorithm": name, key: "no such word"}})


def test_a_setting_that_changes_nothing_is_named(caplog: pytest.LogCaptureFixture) -> None:
    Learner(flat("ppo"), base_config("flat", "ppo", rich=False))
    assert not caplog.records
    Learner(flat("ppo"), dataclasses.replace(base_config("flat", "ppo", rich=False), sde_sample_freq=3))
    assert [record.args for record in caplog.records] == [("sde_sample_freq", 3, "agent.use_sde is false")]
    caplog.clear()
    once = base_config("flat", "ppo", rich=False)
    Learner(flat("ppo"), dataclasses.replace(once, policy="mlp", use_sde=True, sde_sample_freq=once.horizon))
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == ["sde_sample_freq"]
