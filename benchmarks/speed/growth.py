"""Rates by assets, days, features, environments and members, each varied by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from benchmarks.harness.rows import CPU, Row, log_progress
from benchmarks.speed.env import env_rows
from benchmarks.speed.ppo import ppo_rows
from benchmarks.speed.speed_env import SpeedSettings

SWEEPS: dict[str, tuple[int, ...]] = {
    "assets": (10, 30, 100, 300),
    "features": (2, 8, 32),
    "days": (250, 2500, 25000),
    "envs": (256, 1024, 4096, 16384),
    "members": (1, 4, 8, 32),
}
Policy = Literal["mlp", "equivariant"]
Measure = Callable[[SpeedSettings, torch.device], list[Row]]
WORKLOADS: Mapping[str, tuple[Measure, Policy]] = {
    "ppo mlp": (ppo_rows, "mlp"),
    "ppo equivariant": (ppo_rows, "equivariant"),
    "env": (env_rows, "mlp"),
}


@dataclass(frozen=True)
class GrowthSettings:
    """Settings of `growth`. runs: repetitions at each size; the median is reported."""

    runs: int = 3


def growth_rows(settings: GrowthSettings, device: torch.device = CPU) -> list[Row]:
    """Measure every workload at every size; a minibatch is a quarter of a rollout."""
    rows = []
    for name, values in SWEEPS.items():
        for value in values:
            size = replace(SpeedSettings(runs=settings.runs), **{name: value})  # type: ignore[arg-type]
            size = replace(size, minibatch=size.envs * size.horizon // 4)
            for workload, (measure, policy) in WORKLOADS.items():
                (row,) = measure(replace(size, policy=policy), device)
                rows.append(
                    replace(row, name=f"{workload} {name}={value}", config={**row.config, "workload": workload})
                )
                log_progress(f"{rows[-1].name}: {row.value:,.0f}/s")
    return rows
