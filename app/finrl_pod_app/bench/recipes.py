"""How each algorithm is trained on the leaked future: budgets of about a minute on two cores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finrl_pod.catalogue import ALGORITHMS
from finrl_pod.config import EnvironmentConfig
from finrl_pod_app.bench.training import Recipe

# What pays is what happens in the interval decided on; the next one is looked at a little, as by PPO here.
_OFF_POLICY: Mapping[str, Any] = {"discount": 0.5, "learning_rate": 3e-3, "warmup": 2_000}
# Environments, samples, and settings that are not the algorithm's own defaults. An algorithm with a replay draws
# batches of 256 samples: 16 days of 16 accounts each.
_OWN: Mapping[str, tuple[int, int, Mapping[str, Any]]] = {
    "a2c": (256, 500_000, {"horizon": 4, "learning_rate": 1e-2, "discount": 0.5}),
    "analytic": (4096, 4_000_000, {}),
    "shac": (1024, 1_000_000, {"discount": 0.5}),
    "ddpg": (64, 100_000, _OFF_POLICY),
    "td3": (64, 120_000, _OFF_POLICY),
    "sac": (64, 100_000, {**_OFF_POLICY, "temperature": 0.1}),
    "redq": (
        64,
        80_000,
        {**_OFF_POLICY, "discount": 0.0, "temperature": 0.1, "updates": 2, "critics": 5, "policy_delay": 2},
    ),
}


def recipe(algorithm: str) -> Recipe:
    """Groups of 16 accounts."""
    envs, samples, own = _OWN[algorithm]
    agent = ALGORITHMS[algorithm].record(**{"algorithm": algorithm, **own})
    return Recipe(EnvironmentConfig(envs=envs, group=16), agent, samples)


NAMES = tuple(_OWN)
