"""Outputs of twelve configs, stored by one revision and compared by another: a restructuring changes none of them.

    python release/compare_outputs.py store before/     # in a checkout of the old revision, minutes
    python release/compare_outputs.py store after/      # in the new one
    python release/compare_outputs.py compare before/ after/

`store` runs the command line of the installation with --json and writes one JSON file per config. `compare` prints
each value that differs, with its relative difference, and exits with 1 if one differs by more than 1e-6.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

TOLERANCE = 1e-6
# Values that are not results: times, paths, the machine, and versions.
IGNORED = {
    *("seconds", "created", "time", "version", "versions", "commit", "path", "out", "run", "folder", "machine"),
    *("device", "samples_per_second", "started", "finished", "hardware", "rate", "journal", "files", "report"),
}
QUICK = "tournament.generations=2 tournament.samples_per_generation=4000 tournament.pods=4 threads=1"
NEW = f"{QUICK} agent.start=new agent.weight_decay=0"
TOURNAMENTS = {
    "quick": QUICK,
    "closed_form": "agent.algorithm=closed_form threads=1",
    "ppo": f"{NEW} agent.algorithm=ppo agent.policy=mlp environment.cash=50000 environment.whole_shares=true "
    "environment.adjusted_shares=true environment.per_share=0.005",
    "sac": f"{NEW} agent.algorithm=sac agent.policy=linear environment.borrow_fee=0.01 environment.delay=2",
    "shac": f"{NEW} agent.algorithm=shac environment.half_spread_bps=3 mandate.trade_speed=0.2",
    "unconstrained": f"{NEW} agent.algorithm=a2c agent.policy=mlp mandate.base=none environment.half_spread_bps=5",
    "mandate": f"{QUICK} mandate.base=inverse_volatility mandate.max_weight=0.1 mandate.max_turnover=2 "
    "mandate.decide_every=week mandate.volatility_target=0.15",
    "stock_trading": f"{NEW} agent.algorithm=td3 agent.policy=mlp environment.kind=stock_trading mandate.base=none "
    "environment.adjusted_shares=true environment.buy_allocation=sequential environment.turbulence_limit=100",
}
BACKTESTS = {
    "backtest": "equal_weight --cost-bps 20 --set delay=2 --set half_spread_bps=3",
    "backtest_period": "minimum_variance --start 2015-01-02 --end 2016-12-30 --cash 50000 --set whole_shares=true "
    "--set adjusted_shares=true --set per_share=0.01",
}
PAPER = """\
name = "replay"
journal = "journal.sqlite"
symbols = {symbols}
capital = 100000.0
strategy = "inverse_volatility"

[broker]
kind = "simulated"
panel = "sample"

[schedule]
mode = "close"
"""


def main(arguments: list[str]) -> int:
    """Run the command. Returns the exit code: 2 for a wrong call."""
    if len(arguments) == 2 and arguments[0] == "store":
        store(Path(arguments[1]))
        return 0
    if len(arguments) == 3 and arguments[0] == "compare":
        return compare(Path(arguments[1]), Path(arguments[2]))
    sys.stderr.write(__doc__ or "")
    return 2


def store(target: Path) -> None:
    """Write the outputs of all configs."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for name, command in commands(folder):
            if (target / f"{name}.json").exists():
                continue
            start = time.perf_counter()
            result = cli(command, folder)
            if result.returncode not in (0, 1):
                raise SystemExit(f"{name}: exit code {result.returncode}: {result.stderr[-2000:]}")
            (target / f"{name}.json").write_text(json.dumps(json.loads(result.stdout), indent=1) + "\n")
            sys.stderr.write(f"{name}: {time.perf_counter() - start:.0f} s\n")


def commands(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Name and arguments of each config."""
    cli(["init", "quick.toml", "--preset", "quick"], folder)
    plain_values = (folder / "quick.toml").read_text().partition("[[cohorts]]")[0]
    (folder / "one.toml").write_text(plain_values)
    for name, settings in TOURNAMENTS.items():
        config = "quick.toml" if name == "quick" else "one.toml"
        flags = [part for setting in settings.split() for part in ("--set", setting)]
        yield name, ["tournament", config, *flags, "--device", "cpu", "--json", "--out", f"out-{name}"]
    for name, options in BACKTESTS.items():
        yield name, ["backtest", "--strategy", *options.split(), "--json"]
    yield (
        "train_env",
        [
            *("train", "--env", "gym:Pendulum-v1", "--algorithm", "sac", "--steps", "1500", "--members", "2"),
            *("--envs", "2", "--seed", "3", "--json", "--out", "out-env"),
        ],
    )
    (folder / "paper.toml").write_text(PAPER.format(symbols=json.dumps(["AAPL", "JNJ", "KO", "PG", "XOM"])))
    yield "replay", ["paper", "replay", "2019-01-02", "2019-03-29", "paper.toml", "--json"]


def cli(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in a folder, with its own trials and prices."""
    return subprocess.run(
        [sys.executable, "-m", "finrl_pod_app.cli.main", *arguments], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "FINRL_POD_HOME": str(folder / "home")},
    )  # fmt: skip


def compare(stored: Path, current: Path) -> int:
    """Print the values that differ. Returns 1 if one differs by more than the tolerance."""
    worst = 0.0
    for file in sorted(stored.glob("*.json")):
        for position, difference in differences(
            json.loads(file.read_text()), json.loads((current / file.name).read_text())
        ):
            sys.stdout.write(f"{file.stem}: {position}: {difference:.2g}\n")
            worst = max(worst, difference)
    sys.stdout.write(f"largest relative difference {worst:.2g}\n")
    return int(worst > TOLERANCE)


def differences(old: object, new: object, place: str = "") -> Iterator[tuple[str, float]]:
    """Place and relative difference of each value that differs; infinite unless both are numbers."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted((old.keys() | new.keys()) - IGNORED):
            if (key in old) != (key in new):
                yield f"{place}.{key}", math.inf
            else:
                yield from differences(old[key], new[key], f"{place}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, f"{place}[{i}]")
    elif isinstance(old, int | float) and isinstance(new, int | float):
        if old != new and not (math.isnan(old) and math.isnan(new)):
            yield place, abs(old - new) / max(abs(old), abs(new))
    elif old != new:
        yield place, math.inf


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
