"""The first minutes of a device: rows in the order of their worth, each printed and saved as soon as it is measured.

`python -m benchmarks gpu --device cuda --minutes 8 --out FILE`. Needs torch, numpy and pandas; without Triton
the programs run in torch, and the first row says so. A row that fails has its error in place of a value.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.device_tests import FOLDER, run_tests
from benchmarks.gpu.nvml import Utilisation
from benchmarks.harness.rows import Row, as_json, describe, document
from benchmarks.harness.simulated_markets import random_walks
from benchmarks.learning.leaked_signal import EQUIVARIANT, seconds_to_share
from benchmarks.speed.env import env_row
from benchmarks.speed.ppo import population_rows, ppo_row
from benchmarks.speed.sac import SacSettings, sac_rows
from benchmarks.speed.speed_env import SpeedSettings
from finrl_pod.data.panel import make_panel
from finrl_pod.files import write_text
from finrl_pod.native.device import is_triton_installed

ENV_SIZES = tuple(2**power for power in (17, 10, 12, 14, 16, 18))
PPO_SIZES = tuple(2**power for power in (17, 12, 14, 16))
POPULATIONS = (32, 256)
SMALL = (256, 512)  # environments on a CPU, where the script itself is tried
LEAK_BARS, SMALL_BARS, LEAK_SHARE = 4000, 600, 0.9
TRAINING = SpeedSettings(kind="portfolio", mandate="equal_weight", runs=2)

Measurement = Callable[[torch.device], list[Row]]


def device_rows(device: torch.device, minutes: float, out: Path | None, *, quiet: bool = False) -> list[Row]:
    """Measure until the time is over; print every row at once unless `quiet`, and write all to `out` after each."""
    rows: list[Row] = []
    about, end = describe(device), time.monotonic() + 60 * minutes
    for name, measure in _measurements(device):
        if rows and time.monotonic() > end:
            break
        start = time.perf_counter()
        try:
            with Utilisation(device) as utilisation:
                measured = [_sized(name, row) for row in measure(device)]
        except (RuntimeError, torch.OutOfMemoryError) as error:
            measured = [_figure(name, 0.0, "failed", error=(str(error).splitlines() or [""])[0])]
        for row in measured:
            about_row = {**_memory(device), **utilisation.config, "seconds": time.perf_counter() - start}
            row = replace(row, config={**row.config, **about_row})
            rows.append(row)
            if out is not None:
                write_text(out, as_json(document(rows, about)))
            if not quiet:
                print_row(row)
    return rows


def print_row(row: Row) -> None:
    """Print a row to standard output at once."""
    sys.stdout.write(f"{row.name:32} {row.value:16,.0f} {row.unit}  {row.config.get('error', '')}\n")
    sys.stdout.flush()


def _measurements(device: torch.device) -> Iterator[tuple[str, Measurement]]:
    """Names and measurements, the most valuable first."""
    small = device.type == "cpu"
    yield "triton", lambda _: [_figure("triton", float(is_triton_installed() and not small), "used")]
    for envs in SMALL[:1] if small else ENV_SIZES[:1]:
        yield f"env_{envs}", partial(_env, envs)
    for envs in SMALL[:1] if small else PPO_SIZES:
        for policy in ("equivariant", "mlp"):
            yield f"ppo_{policy}_{envs}", partial(_ppo, policy, envs)
    for envs in SMALL[1:] if small else ENV_SIZES[1:]:
        yield f"env_{envs}", partial(_env, envs)
    for envs in SMALL[:1] if small else PPO_SIZES[:1]:
        for policy in ("equivariant", "mlp"):
            yield f"ppo_{policy}_{envs}_tf32", partial(_ppo, policy, envs, matmul_precision="tf32")
            yield f"ppo_{policy}_{envs}_bfloat16", partial(_ppo, policy, envs, activation_dtype="bfloat16")
    for members in (2,) if small else POPULATIONS:
        yield f"population_{members}", partial(_population, members)
    yield "leaked_future_seconds", partial(_leaked_future, SMALL_BARS if small else LEAK_BARS)
    yield "sac", lambda device: sac_rows(SacSettings(runs=1 if small else 3), device)
    if not small:
        yield "tests", _tests
        yield "kernels", _top_kernels


def _env(envs: int, device: torch.device) -> list[Row]:
    settings = replace(TRAINING, envs=envs, observation="table", runs=3)
    return [env_row(settings, device)]


def _training(policy: Any, envs: int, members: int = 1) -> SpeedSettings:
    horizon = 16 if envs <= SMALL[-1] else 64
    return replace(TRAINING, policy=policy, envs=envs, horizon=horizon, minibatch=envs * horizon // 4, members=members)


def _ppo(policy: str, envs: int, device: torch.device, **precision: Any) -> list[Row]:
    return [ppo_row(replace(_training(policy, envs), **precision), device)]


def _population(members: int, device: torch.device) -> list[Row]:
    return population_rows(_training("equivariant", 256 * members, members), device)


def _leaked_future(bars: int, device: torch.device) -> list[Row]:
    """Seconds until the default policy earns 0.9 of the oracle's growth on bars that follow the training bars."""
    closes, _ = random_walks(bars, assets=20, features=1)
    days = np.datetime64("1990-01-02", "ns") + np.arange(bars) * np.timedelta64(1, "D")
    panel = make_panel(days, [f"S{i}" for i in range(20)], {"close": closes}, name="random walks")
    seconds, share = seconds_to_share(LEAK_SHARE, panel, EQUIVARIANT, 0, device)
    reached = {} if share >= LEAK_SHARE else {"error": f"reached {share:.2f} of the oracle with all samples"}
    return [_figure("leaked_future_seconds", seconds, "s", share=share, **reached)]


def _tests(_: torch.device) -> list[Row]:
    """The tests of the GPU path, by pytest or without it."""
    if not FOLDER.is_dir():
        return [_figure("tests", 0.0, "passed", error=f"{FOLDER} is not here: run in a checkout")]
    outcome = run_tests()
    failed = {"error": f"{len(outcome.failed)} failed"} if outcome.failed else {}
    return [_figure("tests", outcome.passed, "passed", failed=outcome.failed, skipped=outcome.skipped, **failed)]


def _top_kernels(device: torch.device, count: int = 20) -> list[Row]:
    """The kernels that an update of the equivariant policy spends its time in."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        ppo_row(replace(_training("equivariant", PPO_SIZES[1]), runs=1), device)
    events = sorted(profiler.key_averages(), key=lambda event: -event.device_time_total)
    return [_figure(event.key[:60], event.device_time_total, "us", calls=event.count) for event in events[:count]]


def _sized(name: str, row: Row) -> Row:
    """A row named after its measurement, with its own name in the config where that differs."""
    return row if row.name.startswith(name) else replace(row, name=name if row.name in name else f"{name}_{row.name}")


def _memory(device: torch.device) -> dict[str, float]:
    if device.type != "cuda":
        return {}
    peak = torch.cuda.max_memory_allocated(device) / 2**30
    torch.cuda.reset_peak_memory_stats(device)
    return {"peak_gib": round(peak, 3)}


def _figure(name: str, value: float, unit: str, **config: Any) -> Row:
    return Row(name, value, value, value, unit, config)
