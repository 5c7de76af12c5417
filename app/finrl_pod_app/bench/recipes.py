"""How each algorithm is trained on the leaked future: budgets of about a minute on two cores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finrl_pod.agents import ALGORITHMS
from finrl_pod.config import EnvironmentConfig
from finrl_pod_app.bench.training import Recipe

# What pays is what happens in the interval decided on; the next one is looked at a little, as by PPO here.
_SHARED: Mapping[str, Any] = {"discount": 0.5, "learning_rate": 3e-3, "warmup": 2_000}
_OWN: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "ddpg": (100_000, {}),
    "td3": (120_000, {}),
    "sac": (100_000, {"temperature": 0.1}),
    "redq": (80_000, {"discount": 0.0, "temperature": 0.1, "updates": 2, "critics": 5, "policy_delay": 2}),
}


def recipe(algorithm: str) -> Recipe:
    """64 environments in 4 groups, so that a batch of 256 samples is 16 days of 16 accounts each."""
    samples, own = _OWN[algorithm]
    agent = ALGORITHMS[algorithm].record(**{"algorithm": algorithm, **_SHARED, **own})
    return Recipe(EnvironmentConfig(envs=64, group=16), agent, samples)


OFF_POLICY = tuple(_OWN)
