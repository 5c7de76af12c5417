"""Agent snapshots for tests."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import AgentSnapshot, Normaliser


def snapshot(id: str = "g00s00", seed: int = 0, **changes: Any) -> AgentSnapshot:
    """A snapshot with tensors of several shapes and dtypes, including NaN, -0.0, infinity and denormals."""
    generator = torch.Generator().manual_seed(seed)
    special_values = torch.tensor([float("nan"), -0.0, float("inf"), 1e-42, 1 / 3])
    values: dict[str, Any] = {
        "id": id,
        "parent": None,
        "spec": {
            "kind": "equivariant",
            "hidden": (8, 8),
            "algorithm": "ppo",
            "environment": dataclasses.asdict(EnvironmentConfig()),
        },
        "weights": {"encode_w": torch.randn(2, 3, generator=generator), "special": special_values},
        "optimiser": {"first": torch.randn(11, generator=generator, dtype=torch.float64), "steps": torch.tensor(7.0)},
        "normaliser": Normaliser(("return_1", "return_5"), (0.1 + 0.2, -1e-17), (1 / 3, 2.5), 10.0),
        "hyperparameters": {"learning_rate": 0.1 + 0.2, "clip_range": 0.2},
        "samples": 2**40,
        "data_sha256": "ab" * 32,
        "seed": 2**62 + 1,
        "version": "0.1.0",
    }
    return AgentSnapshot(**{**values, **changes})
