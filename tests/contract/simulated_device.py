"""Every algorithm stays on its environment's device and computes the same results as on the CPU.

    python -m pytest tests/contract/simulated_device.py

Not collected by pytest: `test_simulated_device.py` runs it in a separate process.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv

from benchmarks.gpu.simulated_device import NAME, DeviceTensor, register_device, simulated_device
from finrl_pod.data.tensor import to_device
from finrl_pod.rl.training.learner import Learner
from finrl_pod.rl.training.pipeline import Pipeline, SharedReplay
from finrl_pod.settings.algorithm_configs import A2CConfig, AgentConfig, DQNConfig, PPOConfig, SACConfig
from tests.contract.test_algorithm import settings_of
from tests.markets import random_market
from tests.rl.all_algorithms import NAMES, small_learner, training_state

MEMBERS = (0, 1)
register_device()
REGULARISERS: dict[str, Any] = {"h_term": 0.3, "h_steps": 2, "h_trajectories": 2, "h_buffer": 4}

LOOKBACK: dict[str, Any] = {"lookback": 5, "encoder_size": 4, "weight_decay": 0.1}


def learn(name: str, policy: str, device: str, **more: Any) -> Learner:
    """Train two iterations, resume from a checkpoint, then train again after copying member 0 over member 1."""
    settings = {"policy": policy, **(REGULARISERS if name in ("ppo", "a2c") and not more else {}), **more}

    def make() -> Learner:
        market = to_device(random_market(5, bars=60, gaps=0.1, starts={1: 20}, leak=True), device)
        return small_learner(name, MEMBERS, market=market, hyperparameters=settings_of(name)[:2], **settings)

    first, learner = make(), make()
    first.learn(2 * first.iteration_samples)
    learner.resume(first.checkpoint())
    learner.learn(learner.iteration_samples)
    learner.algorithm.load_member(1, *learner.algorithm.member(0))
    learner.learn(learner.iteration_samples)
    assert learner.act(learner.env.reset(0)).device.type == device
    return learner


@pytest.mark.parametrize("policy", ["equivariant", "mlp"])
@pytest.mark.parametrize("name", NAMES)
def test_algorithm_matches_the_cpu(name: str, policy: str) -> None:
    assert_same(name, policy)


@pytest.mark.parametrize(
    ("name", "policy", "encoder"),
    [
        ("ppo", "equivariant", "gru"),
        ("ppo", "linear", "none"),
        ("a2c", "linear", "gru"),
        ("analytic", "linear", "gru"),
        ("shac", "equivariant", "gru"),
        ("sac", "linear", "gru"),
        ("dqn", "mlp", "gru"),
    ],
)
def test_encoder_matches_the_cpu(name: str, policy: str, encoder: str) -> None:
    assert_same(name, policy, **({"encoder": encoder, **LOOKBACK} if encoder != "none" else {}))


def assert_same(name: str, policy: str, **more: Any) -> None:
    """Training on the simulated device gives what it gives on the CPU."""
    on_cpu = learn(name, policy, "cpu", **more)
    with simulated_device() as device:
        # Dropout is drawn on the device, whose numbers are those of the CPU here.
        on_device = learn(name, policy, device, **more)
        for p in MEMBERS:
            one, other = training_state(on_cpu, p), training_state(on_device, p)
            assert one.keys() == other.keys()
            for key, value in one.items():
                assert other[key].device.type == "cpu"
                torch.testing.assert_close(other[key], value, rtol=1e-9, atol=1e-9, msg=f"member {p}: {key}")


def test_simulated_device_rejects_tensors_of_two_devices() -> None:
    with simulated_device() as device:
        x = torch.ones(3, device=device)
        assert isinstance(x + 1, DeviceTensor)
        assert (x + 1).device.type == NAME
        with pytest.raises(RuntimeError, match="two devices"):
            x + torch.ones(3)
        for mixed in (
            lambda: torch.stack([x[0], torch.tensor(1.0)]),
            lambda: x.index_put((torch.tensor([0, 1]),), torch.ones(2)),
            lambda: (x > 0).index_put((torch.tensor([0, 1]),), torch.tensor([True, False])),
        ):
            with pytest.raises(RuntimeError, match="two devices"):
                mixed()
        for where, generator in ((device, torch.Generator()), ("cpu", torch.Generator(device))):
            with pytest.raises(RuntimeError, match="generator of"):
                torch.randn(3, generator=generator, device=where)
        assert x[torch.tensor([0, 1])].tolist() == [1, 1]
        assert (x + torch.tensor(2.0)).tolist() == [3, 3, 3]
        assert x.cpu().device.type == "cpu"
    with pytest.raises(RuntimeError):
        torch.ones(3, device=device)


def test_pipeline_learns_on_a_device_from_a_replay_buffer_on_the_cpu() -> None:
    """Sampled batches and the reward scale are moved to the device."""
    on_cpu = small_learner("sac", policy="mlp")
    on_cpu.learn(8 * on_cpu.iteration_samples)
    replay = on_cpu.algorithm.replay

    def learn_from_replay(learner: Learner) -> dict[str, torch.Tensor]:
        learner.algorithm.replay = SharedReplay(replay.data, 2, learner.algorithm.device)
        learner.algorithm.replay.written = replay.written
        learner.algorithm.learn(3, 1.0)
        return training_state(learner)

    expected = learn_from_replay(small_learner("sac", policy="mlp"))
    with simulated_device() as device:
        market = to_device(random_market(5, bars=60, gaps=0.1, starts={1: 20}, leak=True), device)
        on_device = small_learner("sac", policy="mlp", market=market)
        for key, value in learn_from_replay(on_device).items():
            torch.testing.assert_close(value, expected[key], rtol=1e-9, atol=1e-9)
        assert on_device.algorithm.reward_scale.device.type == NAME


@pytest.mark.parametrize(
    ("name", "agent"),
    [
        (
            "gym:Pendulum-v1",
            SACConfig(policy="mlp", hidden=(8,), batch_size=8, buffer_size=64, learning_starts=16, gradient_steps=2),
        ),
        ("gym:Pendulum-v1", PPOConfig(policy="mlp", hidden=(8,), horizon=8, minibatches=2, normalise=True)),
        ("gym:Pendulum-v1", A2CConfig(policy="mlp", hidden=(8,), horizon=8, use_sde=True, optimiser="rmsprop")),
        ("gym:CartPole-v1", DQNConfig(policy="mlp", hidden=(8,), batch_size=8, buffer_size=64, learning_starts=16)),
    ],
    ids=lambda x: getattr(x, "algorithm", x),
)
def test_gymnasium_training_matches_the_cpu(name: str, agent: AgentConfig) -> None:
    def train(device: str) -> dict[str, torch.Tensor]:
        def make() -> Learner:
            return Learner(GymnasiumVecEnv(name, envs=2, device=device), agent, seed=3, dtype=torch.float64)

        first, resumed = make(), make()
        first.learn(40)
        resumed.resume(first.checkpoint())
        resumed.learn(resumed.iteration_samples)
        return training_state(resumed)

    on_cpu = train("cpu")
    with simulated_device() as device:
        for key, value in train(device).items():
            torch.testing.assert_close(value, on_cpu[key], rtol=1e-9, atol=1e-9)


def test_pipeline_with_learner_on_a_device_and_collector_on_the_cpu() -> None:
    make_env = functools.partial(GymnasiumVecEnv, "gym:Pendulum-v1", envs=2)
    agent = SACConfig(policy="mlp", hidden=(8,), batch_size=8, buffer_size=200, learning_starts=40, gradient_steps=2)
    with simulated_device() as device:
        make_here = functools.partial(make_env, device=device)
        with Pipeline(make_env, agent, seed=1, make_here=make_here) as pipeline:
            start = pipeline._acting_weights().clone()
            metrics = pipeline.learn(80)
            assert pipeline.algorithm.device.type == NAME
            assert all(x.device.type == "cpu" for x in pipeline.algorithm.replay.data.values())
            assert float((pipeline._acting_weights() - start).abs().max()) > 1e-3
            assert torch.equal(pipeline._link.weights, pipeline._acting_weights().cpu())
        assert metrics.updates == 80 - 40
