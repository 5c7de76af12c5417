"""The first minutes of a device, or a plan of what a device would do.

    python -m benchmarks gpu --device cuda --minutes 8 --out gpu.json
    python -m benchmarks gpu --plan

Rows come in the order of their worth, and each is saved as soon as it is measured. Needs torch, numpy and pandas (the
row of tests also pytest). Without Triton the programs run in torch, and the first row says so. A row that fails has its
error in its config.
"""

from __future__ import annotations

import ctypes
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import torch

from benchmarks.gpu.plan import plan_rows
from benchmarks.harness.rows import CPU, ROOT, Row, Section, log_progress, single_row
from benchmarks.harness.simulated_markets import random_walks
from benchmarks.learning.leaked_signal import EQUIVARIANT, seconds_to_share
from benchmarks.speed.market_rates import env_rows, population_rows, ppo_rows, training_work
from benchmarks.speed.sac import SacSettings, sac_rows
from benchmarks.speed.speed_env import SpeedSettings
from finrl_pod.data.panel import make_panel
from finrl_pod.errors import ConfigError
from finrl_pod.native.kernel_launch import first_line, is_triton_installed

LIBRARY = "libnvidia-ml.so.1"
SECONDS = 0.2  # between two looks
UTILISATION_SECONDS = 3.0


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Utilisation:
    """Samples the utilisation of a CUDA device by NVML while its block runs.

    The figure of NVML is the share of time in which at least one kernel ran. Raises OSError where NVML is missing or
    does not know the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._samples: list[int] = []
        self._library, self._handle = _handle_of(device)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def mean(self) -> float:
        """Of the samples, 0 to 1. Raises StatisticsError if there are none."""
        return statistics.mean(self._samples) / 100

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        rates = _Rates()
        while not self._end.wait(SECONDS):
            if self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(rates)) == 0:
                self._samples.append(rates.gpu)


def _handle_of(device: torch.device) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """The library with the handle of a device."""
    library = ctypes.CDLL(LIBRARY)
    handle = ctypes.c_void_p()
    properties: Any = torch.cuda.get_device_properties(device)  # the index may differ: CUDA_VISIBLE_DEVICES
    name = f"GPU-{properties.uuid}".encode()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)):
        raise OSError("NVML does not know the device")
    return library, handle


ENV_SIZES = tuple(2**power for power in (17, 10, 12, 14, 16, 18))
PPO_SIZES = tuple(2**power for power in (17, 12, 14, 16))
POPULATIONS = (32, 256)
SMALL = (256, 512)  # environments on a CPU, where the script itself is tried
TEST_FOLDER = ROOT / "tests" / "gpu"
TEST_SECONDS = 300.0
LEAK_BARS = 4000
SMALL_BARS = 600
LEAK_SHARE = 0.9
TRAINING = SpeedSettings(kind="portfolio", mandate="equal_weight", runs=2)


@dataclass(frozen=True)
class GpuSettings:
    """Settings of `gpu`.

    plan: count launches, bytes and what prevents CUDA graphs on the CPU. minutes: time for measuring on the device.
    plant: a fault that the plan must find, or "compile": a row whose kernel cannot be compiled.
    """

    plan: bool = False
    minutes: float = 8.0
    plant: Literal["sync", "moved", "baked", "copy", "compile"] | None = None

    def check(self) -> None:
        """Raise ConfigError for a fault of the other mode."""
        if self.plant is not None and self.plan == (self.plant == "compile"):
            raise ConfigError(
                f"--plant {self.plant} is a fault of {'the device' if self.plan else '--plan'}; "
                f"{'omit' if self.plan else 'add'} --plan"
            )


Measurement = Callable[[torch.device], Sequence[Row]]


def gpu_rows(settings: GpuSettings, device: torch.device = CPU) -> Iterator[Row | Section]:
    """Rows of the plan, or of the device until the time is over."""
    settings.check()
    if settings.plan:
        yield from plan_rows(None if settings.plant == "compile" else settings.plant)
    else:
        yield from device_rows(device, settings.minutes, is_compile_planted=settings.plant == "compile")


def device_rows(device: torch.device, minutes: float, *, is_compile_planted: bool = False) -> Iterator[Row]:
    """Measure until the time is over, at least the first row.

    is_compile_planted: a row raises the error of Triton for a kernel that cannot be compiled.
    """
    end = time.monotonic() + 60 * minutes
    for number, (name, measure) in enumerate(_measurements(device, is_compile_planted)):
        if number and time.monotonic() > end:
            break
        start = time.perf_counter()
        try:
            rows = [_with_name(name, row) for row in measure(device)]
        except Exception as error:  # noqa: BLE001  errors of Triton derive from it; a row must not cost the others
            rows = [single_row(name, 0.0, "failed", error=f"{type(error).__name__}: {first_line(error)}")]
        usage = {**_memory(device), "seconds": time.perf_counter() - start}
        for row in rows:
            log_progress(f"{row.name:32} {row.value:16,.0f} {row.unit}  {row.config.get('error', '')}")
            yield replace(row, config={**row.config, **usage})


def _measurements(device: torch.device, is_compile_planted: bool) -> Iterator[tuple[str, Measurement]]:
    """Names and measurements, the most valuable first."""
    small = device.type == "cpu"
    yield "triton", lambda _: [single_row("triton", float(is_triton_installed() and not small), "used")]
    if is_compile_planted:
        yield "planted", _compile_error
    for envs in SMALL[:1] if small else ENV_SIZES[:1]:
        yield f"env_{envs}", partial(_env, envs)
    for envs in SMALL[:1] if small else PPO_SIZES:
        for policy in ("equivariant", "mlp"):
            yield f"ppo_{policy}_{envs}", partial(_ppo, policy, envs)
    if not small:
        for policy in ("equivariant", "mlp"):
            yield f"utilisation_{policy}", partial(_utilisation, policy, PPO_SIZES[0])
    for envs in SMALL[1:] if small else ENV_SIZES[1:]:
        yield f"env_{envs}", partial(_env, envs)
    for envs in SMALL[:1] if small else PPO_SIZES[:1]:
        for policy in ("equivariant", "mlp"):
            yield f"ppo_{policy}_{envs}_tf32", partial(_ppo, policy, envs, matmul_precision="tf32")
            yield f"ppo_{policy}_{envs}_bfloat16", partial(_ppo, policy, envs, activation_dtype="bfloat16")
    for members in (2,) if small else POPULATIONS:
        yield f"population_{members}", partial(population_rows, _training("equivariant", 256 * members, members))
    yield "leaked_future_seconds", partial(_leaked_future, SMALL_BARS if small else LEAK_BARS)
    yield "sac", lambda device: sac_rows(SacSettings(runs=1 if small else 3), device)
    if not small:
        yield "tests", _tests
        yield "kernels", _top_kernels


def _compile_error(_: torch.device) -> list[Row]:
    """Fail as a kernel does that Triton cannot compile."""
    from triton.compiler.errors import CompilationError  # type: ignore[import-untyped]

    raise CompilationError(None, None, "planted: the kernel cannot be compiled")


def _env(envs: int, device: torch.device) -> list[Row]:
    settings = replace(TRAINING, envs=envs, observation="table", runs=3)
    return env_rows(settings, device)


def _training(policy: Any, envs: int, members: int = 1) -> SpeedSettings:
    horizon = 16 if envs <= SMALL[-1] else 64
    return replace(TRAINING, policy=policy, envs=envs, horizon=horizon, minibatch=envs * horizon // 4, members=members)


def _ppo(policy: str, envs: int, device: torch.device, **precision: Any) -> list[Row]:
    return ppo_rows(replace(_training(policy, envs), **precision), device)


def _utilisation(policy: str, envs: int, device: torch.device) -> list[Row]:
    """The share of time in which the device works while a captured iteration follows the other."""
    work, _ = training_work(_training(policy, envs), device)
    work()
    end = time.monotonic() + UTILISATION_SECONDS
    with Utilisation(device) as utilisation:
        while time.monotonic() < end:
            work()
            torch.cuda.synchronize(device)
    return [single_row("utilisation", utilisation.mean(), "of the time")]


def _leaked_future(bars: int, device: torch.device) -> list[Row]:
    """Seconds until the default policy earns 0.9 of the oracle growth on bars that follow the training bars."""
    closes, _ = random_walks(bars, assets=20, features=1)
    days = np.datetime64("1990-01-02", "ns") + np.arange(bars) * np.timedelta64(1, "D")
    panel = make_panel(days, [f"S{i}" for i in range(20)], {"close": closes}, name="random walks")
    seconds, share = seconds_to_share(LEAK_SHARE, panel, EQUIVARIANT, 0, device)
    error = {} if share >= LEAK_SHARE else {"error": f"reached {share:.2f} of the oracle with all samples"}
    return [single_row("leaked_future_seconds", seconds, "s", share=share, **error)]


def _tests(_: torch.device) -> list[Row]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TEST_FOLDER)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=TEST_SECONDS, check=False)
    summary = (process.stdout.splitlines() or process.stderr.splitlines() or ["no tests"])[-1]
    counts = {outcome: int(number) for number, outcome in re.findall(r"(\d+) (passed|failed|skipped)", summary)}
    error = {"error": summary} if process.returncode else {}
    return [single_row("tests", counts.get("passed", 0), "passed", skipped=counts.get("skipped", 0), **error)]


def _top_kernels(device: torch.device, count: int = 20) -> list[Row]:
    """The kernels that an update of the equivariant policy spends its time in."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        ppo_rows(replace(_training("equivariant", PPO_SIZES[1]), runs=1), device)
    events = sorted(profiler.key_averages(), key=lambda event: -event.device_time_total)
    return [single_row(event.key[:60], event.device_time_total, "us", calls=event.count) for event in events[:count]]


def _with_name(name: str, row: Row) -> Row:
    """A row named after its measurement, with its own name in the config where that differs."""
    return row if row.name.startswith(name) else replace(row, name=name if row.name in name else f"{name}_{row.name}")


def _memory(device: torch.device) -> dict[str, float]:
    if device.type != "cuda":
        return {}
    peak = torch.cuda.max_memory_allocated(device) / 2**30
    torch.cuda.reset_peak_memory_stats(device)
    return {"peak_gib": round(peak, 3)}
