"""Compare samples/s of PPO and steps/s of environments with other libraries, interleaved on one machine.

Each library runs in a separate Python environment:

    python -m venv /tmp/jax && /tmp/jax/bin/pip install jax jaxlib optax numpy
    python -m venv /tmp/sb3 && /tmp/sb3/bin/pip install torch==2.13.0 stable-baselines3
    python -m benchmarks compare --jax /tmp/jax/bin/python --sb3 /tmp/sb3/bin/python --out benchmarks/compare.json

Rounds are interleaved, so that a change of the machine's speed affects all. Rows are medians over the rounds with their
range; ratios are computed within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.harness.results import FOLDER
from benchmarks.harness.rows import Row, as_json, as_table, describe, document, median_row

PEERS = FOLDER / "peers"
THREADS = 2
COMMON = ["--assets", "30", "--features", "8", "--days", "2500", "--threads", str(THREADS), "--runs", "3", "--json"]
PPO = ["ppo", *COMMON, "--envs", "1024", "--horizon", "16", "--minibatch", "4096", "--epochs", "4", "--hidden", "64,64"]
ENV = ["env", *COMMON, "--envs", "8192"]
OURS = {
    "ppo mlp": [*PPO, "--policy", "mlp"],
    "ppo equivariant": [*PPO, "--policy", "equivariant"],
    "env flat": [*ENV, "--observation", "flat"],
    "env table": [*ENV, "--observation", "table"],
    "env sequential": [*ENV, "--observation", "table", "--order", "sequential"],
}
JAX_PPO, JAX_ENV = "jax ppo proportional, 1024 envs x 16, minibatch 4096, 4 epochs", "jax env {}, 8192 envs"
SB3_PPO = "sb3 ppo, 8 envs, minibatch 512, 4 epochs"
RATIOS = {
    "ppo mlp over jax": ("ppo mlp", JAX_PPO),
    "ppo mlp over sb3": ("ppo mlp", SB3_PPO),
    "ppo equivariant over mlp": ("ppo equivariant", "ppo mlp"),
    "env flat over jax": ("env flat", JAX_ENV.format("proportional")),
    "env sequential over jax": ("env sequential", JAX_ENV.format("sequential")),
}


def output_of(command: Sequence[str | Path], folder: Path | None = None, threads: int = THREADS) -> str:
    """Run a command and return its standard output."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run([str(x) for x in command], cwd=folder, env=environment, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode()


def ours(arguments: Sequence[str]) -> float:
    rows = json.loads(output_of([sys.executable, "-m", "benchmarks", *arguments]))["rows"]
    return float(rows[0]["value"])


def peer(python: Path, script: str, threads: int = THREADS) -> dict[str, float]:
    printed = output_of([python, script], PEERS, threads).splitlines()
    return {row["name"]: row["value"] for row in map(json.loads, printed)}


def one_round(jax: Path | None, sb3: Path | None) -> dict[str, float]:
    found = {name: ours(arguments) for name, arguments in OURS.items()}
    if jax is not None:
        found |= peer(jax, "jax_ppo.py") | peer(jax, "jax_env.py")
    if sb3 is not None:
        found |= peer(sb3, "sb3_ppo.py", threads=1)
    return found | {name: found[a] / found[b] for name, (a, b) in RATIOS.items() if a in found and b in found}


def rows_of(rounds: Sequence[Mapping[str, float]]) -> list[Row]:
    """Return a row per measurement with its median over the rounds."""
    units = dict.fromkeys(RATIOS, "ratio")
    return [
        median_row(
            name,
            [found[name] for found in rounds],
            units.get(name, "samples/s" if "ppo" in name else "steps/s"),
            {"rounds": len(rounds), "arguments": OURS.get(name, [])},
        )
        for name in rounds[0]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jax", type=Path, help="a Python with jax, optax and numpy")
    parser.add_argument("--sb3", type=Path, help="a Python with torch and stable-baselines3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the JSON to this file")
    options = parser.parse_args()
    jax, sb3 = (path and path.absolute() for path in (options.jax, options.sb3))  # peers run in another folder
    rounds = []
    for i in range(options.rounds):
        rounds.append(one_round(jax, sb3))
        ratios = {name: round(rounds[-1][name], 2) for name in RATIOS if name in rounds[-1]}
        sys.stderr.write(f"round {i + 1} of {options.rounds}: {ratios}\n")
    rows = rows_of(rounds)
    sys.stdout.write(as_table(rows))
    if options.out is not None:
        options.out.write_text(as_json(document(rows, describe(torch.device("cpu")))))
