"""PPO as it runs on GPUs, on the CPU: the numbers of the autograd path, without waits, moves and wide tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from finrl_pod_envs.trading_envs import PortfolioEnv, make_env

from benchmarks.gpu.launches import record
from benchmarks.gpu.plan import plan_iteration
from finrl_pod.errors import ConfigError
from finrl_pod.native.device import as_on_device
from finrl_pod.random import MemberGenerators, generators
from finrl_pod.rl.algorithms import base
from finrl_pod.rl.algorithms.ppo import PPO
from finrl_pod.rl.fused import device_policy
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import (
    A2CConfig,
    AgentConfig,
    AnalyticConfig,
    DDPGConfig,
    DQNConfig,
    REDQConfig,
    SACConfig,
    SHACConfig,
    TD3Config,
)
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig, PPOConfig
from tests.markets import random_market

RULES = EnvironmentConfig(envs=8, group=4, window=20)


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [(16,), (8, 12, 16)])
@pytest.mark.parametrize("gaps", [0.0, 0.1])
@pytest.mark.parametrize("policy", ["mlp", "equivariant"])
def test_three_iterations_equal_those_of_autograd(
    policy: str, gaps: float, hidden: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_cpu(seed: int, members: Sequence[int], purpose: str, device: torch.device) -> MemberGenerators:
        return MemberGenerators(generators(seed, members, purpose, device))

    market = random_market(0, bars=80, assets=5, gaps=gaps)
    agent = PPOConfig(policy=policy, horizon=8, minibatches=2, epochs=2, hidden=hidden, learning_rate=1e-2)  # type: ignore[arg-type]

    def make() -> Learner:
        env = PortfolioEnv(market, RULES, members=(0, 1), dtype=torch.float64, mandate=MandateConfig())
        return Learner(env, agent, seed=5, dtype=torch.float64)

    plain = make()
    metrics = plain.learn(3 * plain.iteration_samples)
    monkeypatch.setattr(base, "random_source", on_cpu)
    with as_on_device():
        learner = make()
        theirs = learner.learn(3 * plain.iteration_samples)
    for name, values in plain.algorithm.weights().items():
        torch.testing.assert_close(learner.algorithm.weights()[name], values, rtol=1e-9, atol=1e-11)
    for name, column in metrics.items():
        torch.testing.assert_close(theirs[name], column, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
def test_encoding_the_table_changes_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where items share rows of the market table, the table is encoded once; acting and learning stay the same."""
    market = random_market(0, bars=30, assets=5, gaps=0.1)
    agent = PPOConfig(horizon=8, minibatches=2, epochs=2, hidden=(8, 12, 16), learning_rate=1e-2)
    tables = []
    encode = device_policy._EquivariantDevicePolicy._encode

    def noted(self: Any, prefix: str, features: torch.Tensor, tradable: torch.Tensor | None) -> Any:
        tables.append(features.shape[1])
        return encode(self, prefix, features, tradable)

    monkeypatch.setattr(device_policy._EquivariantDevicePolicy, "_encode", noted)

    def trained(repeats: float) -> Learner:
        monkeypatch.setattr(device_policy, "TABLE_REPEATS", repeats)
        rules = EnvironmentConfig(envs=64, group=2, window=20)
        env = PortfolioEnv(market, rules, members=(0, 1), dtype=torch.float64, mandate=MandateConfig())
        with as_on_device():
            learner = Learner(env, agent, seed=5, dtype=torch.float64)
            learner.learn(2 * learner.iteration_samples)
        return learner

    once = trained(1)
    assert set(tables) == {30}
    each = trained(1e9)
    for name, values in each.algorithm.weights().items():
        torch.testing.assert_close(once.algorithm.weights()[name], values, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("policy", ["mlp", "equivariant"])
def test_bfloat16_rounds_activations_and_accounts_and_nothing_else(policy: str) -> None:
    market = random_market(0, bars=80, assets=5, gaps=0.1)
    agent = PPOConfig(policy=policy, horizon=8, minibatches=1, epochs=1, hidden=(8, 12), max_grad_norm=1e9)

    def moved(dtype: Literal["float32", "bfloat16"]) -> tuple[torch.Tensor, Learner]:
        with as_on_device():
            env = PortfolioEnv(market, RULES, members=(0, 1), mandate=MandateConfig())
            learner = Learner(env, replace(agent, activation_dtype=dtype), seed=5)
            learner.learn(learner.iteration_samples)
        assert isinstance(learner.algorithm, PPO)
        return learner.algorithm.optimiser.first, learner  # type: ignore[attr-defined]

    exact, _ = moved("float32")
    rounded, learner = moved("bfloat16")
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    assert float(torch.cosine_similarity(rounded, exact).min()) > 0.995
    torch.testing.assert_close(rounded.norm(dim=1), exact.norm(dim=1), rtol=0.02, atol=0)
    with as_on_device():
        algorithm, collector = learner.algorithm, learner.collector
        assert isinstance(algorithm, PPO)
        noise = algorithm.noise((*collector.shape[1:], algorithm.spec.action_size))
        rollout = collector.collect(algorithm.explore, noise, account_dtype=algorithm.account_dtype)
        bar, account = rollout.bar[0], rollout.account[0]
        action, log_probability = algorithm.explore(bar, account, noise[0])
    assert rollout.account.dtype == torch.bfloat16
    assert {x.dtype for x in (rollout.action, rollout.log_probability, rollout.reward)} == {torch.float32}
    torch.testing.assert_close(action, rollout.action[0])  # decided on what is stored
    torch.testing.assert_close(log_probability, rollout.log_probability[0])


def test_bfloat16_is_refused_where_the_policy_has_no_program() -> None:
    env = PortfolioEnv(random_market(0, bars=80, assets=5), RULES)
    agent = PPOConfig(activation_dtype="bfloat16", use_sde=True, policy="mlp", horizon=8)
    with as_on_device(), pytest.raises(ConfigError, match="activation_dtype"):
        Learner(env, agent)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("policy", "repeats"), [("mlp", 2), ("equivariant", 2), ("equivariant", 0)])
def test_an_iteration_can_be_captured(policy: str, repeats: float, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_policy, "TABLE_REPEATS", repeats)  # 0: the table is encoded
    run, _ = plan_iteration(policy, accounts=256, horizon=8, minibatches=2, activation_dtype=dtype)  # type: ignore[arg-type]
    run()
    first, second = record(run), record(run)
    assert not second.syncs
    assert not first.moved_buffers(second)
    assert not first.baked_numbers(second)


@pytest.mark.slow
@pytest.mark.parametrize(
    "agent",
    [
        SACConfig(learning_starts=0, buffer_size=4096),
        TD3Config(learning_starts=0, buffer_size=4096),
        DDPGConfig(learning_starts=0, buffer_size=4096),
        REDQConfig(learning_starts=0, buffer_size=4096),
        AnalyticConfig(horizon=8),
        SHACConfig(horizon=8),
        A2CConfig(),
        DQNConfig(learning_starts=0, buffer_size=4096),
    ],
    ids=lambda agent: agent.algorithm,
)
def test_other_algorithms_do_not_wait_for_the_device(agent: AgentConfig) -> None:
    """They run eagerly, and the host may run ahead of the device."""
    with as_on_device():
        market = random_market(0, bars=80, assets=5, gaps=0.1)
        is_discrete = agent.algorithm == "dqn"
        rules = EnvironmentConfig(kind="discrete" if is_discrete else "portfolio", envs=32, group=4, window=40)
        learner = Learner(make_env(market, rules, mandate=None if is_discrete else MandateConfig()), agent)
        learner.learn(2 * learner.iteration_samples)
        recording = record(lambda: learner.algorithm.iterate(learner.collector, torch.ones(1)))
    assert not recording.syncs


FRICTIONS = EnvironmentConfig(
    envs=32,
    group=4,
    window=40,
    half_spread_bps=5.0,
    impact=0.3,
    participation=0.1,
    per_share=0.01,
    adjusted_shares=True,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "rules"),
    [
        (PPOConfig(horizon=16, minibatches=2, epochs=1, h_term=0.1), EnvironmentConfig(envs=32, group=4, window=40)),
        (PPOConfig(horizon=16, minibatches=2, epochs=1), FRICTIONS),
        (AnalyticConfig(horizon=8), FRICTIONS),
    ],
    ids=["h-term", "frictions", "gradients of frictions"],
)
def test_the_h_term_and_frictions_do_not_wait_for_the_device(agent: AgentConfig, rules: EnvironmentConfig) -> None:
    with as_on_device():
        market = random_market(0, bars=80, assets=5, gaps=0.1, volumes=True)
        learner = Learner(PortfolioEnv(market, rules, members=(0, 1), mandate=MandateConfig()), agent)
        learner.learn(2 * learner.iteration_samples)
        recording = record(lambda: learner.algorithm.iterate(learner.collector, torch.ones(1)))
    assert not recording.syncs


@pytest.mark.slow
def test_no_tensor_of_an_equivariant_update_is_wide() -> None:
    run, samples = plan_iteration("equivariant", accounts=2048, horizon=8, minibatches=1)
    run()
    recording = record(run)
    assert recording.widest <= 2048 * samples, recording.widest_operation
