"""Samples/s of PPO and steps/s of environments, here, in JAX and in Stable-Baselines3, interleaved on one machine.

Each library runs in a separate Python environment:

    python -m venv /tmp/jax && /tmp/jax/bin/pip install jax jaxlib optax numpy
    python -m venv /tmp/sb3 && /tmp/sb3/bin/pip install torch==2.13.0 stable-baselines3
    python -m benchmarks compare --jax /tmp/jax/bin/python --sb3 /tmp/sb3/bin/python --out benchmarks/compare.json

A change of machine speed affects all sides of a round. Rows are medians over the rounds with their range; ratios
are computed within a round.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from benchmarks.harness.results import FOLDER
from benchmarks.harness.rows import CPU, Row, log_progress, median_row
from benchmarks.speed.env import env_rows
from benchmarks.speed.ppo import ppo_rows
from benchmarks.speed.speed_env import SpeedSettings

PEERS = FOLDER / "peers"
THREADS = 2
PPO = SpeedSettings(runs=3)
ENV = SpeedSettings(envs=8192, runs=3)
MEASUREMENTS: Mapping[str, tuple[Callable[[SpeedSettings, torch.device], list[Row]], SpeedSettings]] = {
    "ppo mlp": (ppo_rows, PPO),
    "ppo equivariant": (ppo_rows, replace(PPO, policy="equivariant")),
    "env flat": (env_rows, replace(ENV, observation="flat")),
    "env table": (env_rows, ENV),
    "env sequential": (env_rows, replace(ENV, order="sequential")),
}
JAX_PPO = "jax ppo proportional, 1024 envs x 16, minibatch 4096, 4 epochs"
JAX_ENV = "jax env {}, 8192 envs"
RATIOS = {
    "ppo mlp over jax": ("ppo mlp", JAX_PPO),
    "ppo mlp over sb3": ("ppo mlp", "sb3 ppo, 8 envs, minibatch 512, 4 epochs"),
    "ppo equivariant over mlp": ("ppo equivariant", "ppo mlp"),
    "env flat over jax": ("env flat", JAX_ENV.format("proportional")),
    "env sequential over jax": ("env sequential", JAX_ENV.format("sequential")),
}


@dataclass(frozen=True)
class ComparisonSettings:
    """Settings of `compare`. jax, sb3: Python interpreters with the peers' packages; a missing one is left out."""

    jax: Path | None = None
    sb3: Path | None = None
    rounds: int = 3


def peer_rates(python: Path, script: str, threads: int = THREADS) -> dict[str, float]:
    """Rates that a script of peers/ prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    process = subprocess.run(
        [str(python.absolute()), script], cwd=PEERS, env=environment, stdout=subprocess.PIPE, check=True
    )
    return {row["name"]: row["value"] for row in map(json.loads, process.stdout.decode().splitlines())}


def measure_round(settings: ComparisonSettings, device: torch.device) -> dict[str, float]:
    """Rates and ratios of all sides."""
    rates = {name: measure(size, device)[0].value for name, (measure, size) in MEASUREMENTS.items()}
    if settings.jax is not None:
        rates |= peer_rates(settings.jax, "jax_ppo.py") | peer_rates(settings.jax, "jax_env.py")
    if settings.sb3 is not None:
        rates |= peer_rates(settings.sb3, "sb3_ppo.py", threads=1)
    return rates | {name: rates[a] / rates[b] for name, (a, b) in RATIOS.items() if a in rates and b in rates}


def comparison_rows(settings: ComparisonSettings, device: torch.device = CPU) -> list[Row]:
    """Return a row per measurement with its median over the rounds."""
    rounds = []
    for number in range(1, settings.rounds + 1):
        rounds.append(measure_round(settings, device))
        ratios = {name: round(rounds[-1][name], 2) for name in RATIOS if name in rounds[-1]}
        log_progress(f"round {number} of {settings.rounds}: {ratios}")
    rows = []
    for name in rounds[0]:
        unit = "ratio" if name in RATIOS else "samples/s" if "ppo" in name else "steps/s"
        size = asdict(MEASUREMENTS[name][1]) if name in MEASUREMENTS else {}
        rows.append(median_row(name, [rates[name] for rates in rounds], unit, {"rounds": len(rounds), **size}))
    return rows
