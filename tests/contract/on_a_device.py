"""Every algorithm stays on the device that its environment is on, and computes there what it does on the CPU.

    python -m pytest tests/contract/on_a_device.py

Not collected by itself: `test_on_a_device.py` gives it a process of its own.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from finrl_pod_envs.classic.env import ClassicEnv

from finrl_pod.agents import SACConfig
from finrl_pod.data.tensor import to_device
from finrl_pod.rl.learner import Learner
from finrl_pod.rl.pipeline import Pipeline, SharedReplay
from tests.contract.test_algorithm import settings_of
from tests.markets import random_market
from tests.pretend_device import NAME, There, pretend_device
from tests.rl.zoo import NAMES, everything, small_learner

MEMBERS = (0, 1)
ADDED: dict[str, Any] = {"h_term": 0.3, "h_steps": 3, "h_trajectories": 4, "h_buffer": 8, "diversity": 0.1}


def learn(name: str, policy: str, device: str) -> Learner:
    """Three iterations, a save, one more from it, and another with a member replaced by the other."""
    settings = {"policy": policy, **(ADDED if name in ("ppo", "a2c") else {})}

    def make() -> Learner:
        market = to_device(random_market(5, bars=60, gaps=0.1, starts={1: 20}, leak=True), device)
        return small_learner(name, MEMBERS, market=market, hyperparameters=settings_of(name)[:2], **settings)

    first, learner = make(), make()
    first.learn(3 * first.iteration_samples)
    learner.resume(first.checkpoint())
    learner.learn(learner.iteration_samples)
    learner.algorithm.load_member(1, *learner.algorithm.member(0))
    learner.learn(learner.iteration_samples)
    assert learner.act(learner.env.reset(0)).device.type == device
    return learner


@pytest.mark.parametrize("policy", ["equivariant", "mlp"])
@pytest.mark.parametrize("name", NAMES)
def test_an_algorithm_learns_the_same_on_a_device(name: str, policy: str) -> None:
    here = learn(name, policy, "cpu")
    with pretend_device() as device:
        there = learn(name, policy, device)
        for p in MEMBERS:
            one, other = everything(here, p), everything(there, p)
            assert one.keys() == other.keys()
            for key, value in one.items():
                assert other[key].device.type == "cpu"
                torch.testing.assert_close(other[key], value, rtol=1e-9, atol=1e-9, msg=f"member {p}: {key}")


def test_the_pretended_device_refuses_to_be_mixed() -> None:
    with pretend_device() as device:
        x = torch.ones(3, device=device)
        assert isinstance(x + 1, There)
        assert (x + 1).device.type == NAME
        with pytest.raises(RuntimeError, match="two devices"):
            x + torch.ones(3)
        assert (x + torch.tensor(2.0)).tolist() == [3, 3, 3]
        assert x.cpu().device.type == "cpu"
    with pytest.raises(RuntimeError):
        torch.ones(3, device=device)


def test_a_pipeline_learns_on_a_device_from_a_ring_on_the_cpu() -> None:
    """What is drawn is moved to it, and the scale of the rewards too."""
    here = small_learner("sac", policy="mlp")
    here.learn(8 * here.iteration_samples)
    ring = here.algorithm.replay

    def learn_from_the_ring(learner: Learner) -> dict[str, torch.Tensor]:
        learner.algorithm.replay = SharedReplay(ring.data, 2, learner.algorithm.device)
        learner.algorithm.replay.written = ring.written
        learner.algorithm.learn(3, 1.0)
        return everything(learner)

    wanted = learn_from_the_ring(small_learner("sac", policy="mlp"))
    with pretend_device() as device:
        market = to_device(random_market(5, bars=60, gaps=0.1, starts={1: 20}, leak=True), device)
        there = small_learner("sac", policy="mlp", market=market)
        for key, value in learn_from_the_ring(there).items():
            torch.testing.assert_close(value, wanted[key], rtol=1e-9, atol=1e-9)
        assert there.algorithm.reward_scale.device.type == NAME


def test_rows_of_gymnasium_are_learned_from_on_a_device() -> None:
    def returns(device: str) -> dict[str, torch.Tensor]:
        env = ClassicEnv("gym:Pendulum-v1", envs=2, device=device)
        agent = SACConfig(policy="mlp", hidden=(8,), batch=8, replay=64, warmup=16, updates=2)
        learner = Learner(env, agent, seed=3, dtype=torch.float64)
        learner.learn(40)
        again = Learner(ClassicEnv("gym:Pendulum-v1", envs=2, device=device), agent, seed=3, dtype=torch.float64)
        again.resume(learner.checkpoint())
        again.learn(4)
        return everything(again)

    here = returns("cpu")
    with pretend_device() as device:
        for key, value in returns(device).items():
            torch.testing.assert_close(value, here[key], rtol=1e-9, atol=1e-9)


def test_a_pipeline_with_its_learner_on_a_device() -> None:
    make_env = functools.partial(ClassicEnv, "gym:Pendulum-v1", envs=2)
    agent = SACConfig(policy="mlp", hidden=(8,), batch=8, replay=200, warmup=40, updates=2)
    with pretend_device() as device:
        make_here = functools.partial(make_env, device=device)
        with Pipeline(make_env, agent, seed=1, make_here=make_here) as pipeline:
            start = pipeline._own().clone()
            figures = pipeline.learn(200)
            assert pipeline.algorithm.device.type == NAME
            assert all(x.device.type == "cpu" for x in pipeline.algorithm.replay.data.values())
            assert float((pipeline._own() - start).abs().max()) > 1e-3
            assert torch.equal(pipeline._weights, pipeline._own().cpu())
        assert figures.updates == 200 - 40
