"""Measure how rates scale with assets, days, features, environments and members, and plot them.

python -m benchmarks growth --out benchmarks/growth.json --picture docs/images/growth.svg
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.rows import as_json, describe

SWEEPS: dict[str, tuple[int, ...]] = {
    "assets": (10, 30, 100, 300),
    "features": (2, 8, 32),
    "days": (250, 2500, 25000),
    "envs": (256, 1024, 4096, 16384),
    "members": (1, 4, 8, 32),
}
POLICIES = ("mlp", "equivariant")
BASE = {"envs": 1024, "assets": 30, "features": 8, "days": 2500, "members": 1}


def minibatch(envs: int) -> int:
    """Return a quarter of a rollout of 16 steps."""
    return envs * 16 // 4


def measure(what: str, setting: dict[str, int], policy: str) -> float:
    arguments = [text for name, value in setting.items() for text in (f"--{name}", str(value))]
    if what == "ppo":
        arguments += ["--minibatch", str(minibatch(setting["envs"])), "--policy", policy]
    else:
        arguments += ["--observation", "table"]
    command = [sys.executable, "-m", "benchmarks", what, *arguments, "--threads", "2", "--runs", "3", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return float(json.loads(done.stdout)["rows"][0]["value"])


def sweep() -> list[dict[str, Any]]:
    found = []
    for name, values in SWEEPS.items():
        for value in values:
            setting = {**BASE, name: value}
            for what, policy in (("ppo", "mlp"), ("ppo", "equivariant"), ("env", "")):
                rate = measure(what, setting, policy)
                found.append({"sweep": name, "at": value, "what": f"{what} {policy}".strip(), "rate": rate})
                sys.stderr.write(f"{name} {value}, {what} {policy}: {rate:,.0f}/s\n")
    return found


def plot(found: list[dict[str, Any]], path: Path) -> None:
    """Plot microseconds per sample on logarithmic axes, a panel per sweep; slope one is linear growth."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(SWEEPS), figsize=(15, 3.4), sharey=True)
    for panel, name in zip(panels, SWEEPS, strict=True):
        for what in ("ppo mlp", "ppo equivariant", "env"):
            points = [(row["at"], 1e6 / row["rate"]) for row in found if row["sweep"] == name and row["what"] == what]
            panel.plot(*zip(*points, strict=True), marker="o", label=what)
        panel.set(xscale="log", yscale="log", xlabel=name)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("microseconds per sample")
    panels[0].legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="write the JSON to this file")
    parser.add_argument("--picture", type=Path, help="SVG; needs matplotlib")
    options = parser.parse_args()
    found = sweep()
    document = {"rates": found, "base": BASE, "machine": describe(torch.device("cpu"))}
    options.out.write_text(as_json(document))
    if options.picture is not None:
        plot(found, options.picture)
