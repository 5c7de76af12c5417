"""Measure time and memory of a whole tournament on synthetic prices.

    python -m benchmarks scale                              # 500 symbols x 6,000 days, 100 x 100,000 minutes; hours
    python -m benchmarks scale --only daily --preset laptop
    python -m benchmarks scale --only 20x1500x1d --results /tmp/scale.jsonl --json

Prices are random walks with a common factor, and half spreads of 1 to 5 basis points are charged. `finrl-pod
tournament` runs in a separate process, from reading the prices to the report; peak memory is the largest resident set
of that process. Every finished run is a line of `benchmarks/scale.jsonl` and is not repeated at the same commit; the
last line of a size counts. An interrupted run continues from its last generation, and the seconds before the
interruption are then left out.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from finrl_pod_app.setup.presets import config_text, for_panel, preset

from benchmarks.harness.rows import CPU, FOLDER, Job, Row, current_commit, describe, read, run_missing, single_row
from finrl_pod.data.panel import BARS, make_panel
from finrl_pod.data.store import Store
from finrl_pod.errors import ConfigError, DataError
from finrl_pod.files import ROOT_VARIABLE
from finrl_pod.types import Panel

RESULTS_FILE = FOLDER / "scale.jsonl"
WORK_FOLDER = Path(tempfile.gettempdir()) / "finrl-pod-scale"
SEED = 0
# of the log return of a day
MARKET_VOLATILITY = 0.01
OWN_VOLATILITY = 0.015
MINUTES_PER_SESSION = 390
MINUTES_PER_BAR = {"1h": 60, "15m": 15, "1m": 1}
OPENING_MINUTE = 14 * 60 + 30
MAX_HALF_SPREAD = 5e-4
GIB_KIB = 2**20
Times = np.ndarray[tuple[int, ...], np.dtype[np.datetime64]]


class Size(NamedTuple):
    """Symbols, bars, and the length of a bar, such as "1d"."""

    symbols: int
    bars: int
    bar: str

    @property
    def name(self) -> str:
        return f"{self.symbols}x{self.bars}x{self.bar}"


SIZES = {"daily": Size(500, 6_000, "1d"), "minute": Size(100, 100_000, "1m")}


@dataclass(frozen=True)
class ScaleSettings:
    """Settings of `scale`.

    only: daily, minute or sizes such as 20x1500x1d. results: file of results. work: folder of prices and runs. table:
    rows of stored results, without a run.
    """

    only: tuple[str, ...] = ("daily", "minute")
    preset: str = "quick"
    results: Path = RESULTS_FILE
    work: Path = WORK_FOLDER
    table: bool = False


def scale_rows(settings: ScaleSettings, device: torch.device = CPU) -> list[Row]:
    """Run the tournaments that the file lacks at this commit; return two rows for the last stored run of each size."""
    sizes = [] if settings.table else [parse_size(text) for text in settings.only]
    key = {"preset": settings.preset, "commit": current_commit()}
    jobs = (Job({"size": size.name, **key}, partial(measure, size, settings, device)) for size in sizes)
    run_missing(settings.results, jobs)
    rows = []
    last_runs = {(record["size"], record["preset"]): record for record in read(settings.results)}
    for record in last_runs.values():
        config = {name: record[name] for name in ("size", "preset", "samples", "timing", "cpu_seconds", "commit")}
        rows.append(single_row("tournament", record["seconds"], "s", **config, interval="one run"))
        rows.append(single_row("tournament_memory", record["peak_gib"], "GiB", **config, interval="one run"))
    return rows


def parse_size(text: str) -> Size:
    """The size that a text such as 20x1500x1d names. Raises ConfigError."""
    if text in SIZES:
        return SIZES[text]
    match = re.fullmatch(r"(\d+)x(\d+)x(\w+)", text)
    if not match or match[3] not in BARS:
        raise ConfigError(
            f"--only must be {', '.join(SIZES)} or symbols x bars x length such as 20x1500x1d, got {text!r}"
        )
    return Size(int(match[1]), int(match[2]), match[3])


def measure(size: Size, settings: ScaleSettings, device: torch.device) -> dict[str, Any]:
    """Run a tournament in a separate process: seconds, processor time, samples per second and peak memory."""
    folder = settings.work / f"{size.name}-{settings.preset}"
    store = Store(folder / "store")
    run = folder / "run"
    # In a process apart: the peak of a program that this one starts would count the memory that this one used before.
    maker = multiprocessing.get_context("spawn").Process(target=make_prices, args=(size, store.root))
    maker.start()
    maker.join()
    config = for_panel(preset(settings.preset), store.show(size.name))
    config = dataclasses.replace(
        config, environment=dataclasses.replace(config.environment, cost_bps=5.0, half_spread="from data")
    )
    (folder / "config.toml").write_text(config_text(config))
    command = [
        *(sys.executable, "-m", "finrl_pod_app.cli.main", "tournament", str(folder / "config.toml")),
        *("--out", str(run), "--json", "--device", "cpu"),
    ]
    home = folder / "home"
    if (run / "config.json").exists():
        command.append("--resume")
    else:  # a champion that has a verdict in this home would not be audited again
        shutil.rmtree(home, ignore_errors=True)
    environment = {**os.environ, ROOT_VARIABLE: str(store.root), "FINRL_POD_HOME": str(home)}
    start = time.perf_counter()
    with (folder / "report.json").open("wb") as out:
        actions = [(os.POSIX_SPAWN_DUP2, out.fileno(), 1)]
        child = os.posix_spawn(sys.executable, command, environment, file_actions=actions)
        _, status, usage = os.wait4(child, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"the tournament on {size.name} failed; run it again with: {' '.join(command)}")
    shutil.rmtree(run)  # a later commit measures a new run
    tournament = config.tournament
    return {
        "seconds": round(seconds, 1),
        "peak_gib": round(usage.ru_maxrss / GIB_KIB, 3),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "timing": json.loads((folder / "report.json").read_text())["timing"],
        "samples": tournament.pods * tournament.generations * tournament.samples_per_generation,
        "machine": describe(device),
    }


def make_prices(size: Size, root: Path) -> None:
    """Store the synthetic panel of a size unless it is there."""
    store = Store(root)
    try:
        store.show(size.name)
    except DataError:
        store.save(synthetic_panel(size))


def synthetic_panel(size: Size) -> Panel:
    """Closes of random walks with a common factor, and spreads: an endless supply of data of any size."""
    rng = np.random.default_rng(SEED)
    days = 1.0 if size.bar == "1d" else MINUTES_PER_BAR[size.bar] / MINUTES_PER_SESSION
    market = rng.normal(0.0003 * days, MARKET_VOLATILITY * days**0.5, (size.bars, 1))
    moves = rng.normal(0, OWN_VOLATILITY * days**0.5, (size.bars, size.symbols))
    moves += market
    close = 50 * np.exp(np.cumsum(moves, axis=0))
    spread = 2 * MAX_HALF_SPREAD * rng.uniform(0.2, 1, close.shape)
    symbols = [f"S{n}" for n in range(size.symbols)]
    return make_panel(
        times(size), symbols, {"close": close, "spread": spread}, name=size.name, source="benchmarks/speed/scale.py",
        bar=size.bar,
    )  # fmt: skip


def times(size: Size) -> Times:
    """[T] weekdays from 2000 on, or the minutes of their sessions."""
    per_session = 1 if size.bar == "1d" else -(-MINUTES_PER_SESSION // MINUTES_PER_BAR[size.bar])
    sessions = -(-size.bars // per_session)
    days: Times = np.busday_offset(np.datetime64("2000-01-03"), np.arange(sessions)).astype("datetime64[ns]")
    if size.bar == "1d":
        return days
    step = MINUTES_PER_BAR[size.bar]
    minutes = (OPENING_MINUTE + np.arange(0, MINUTES_PER_SESSION, step)).astype("timedelta64[m]")
    every_minute: Times = (days[:, None] + minutes).ravel()[: size.bars]
    return every_minute
