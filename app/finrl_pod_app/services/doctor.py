"""What this machine has, what would not work on it and how to fix that, and the device to train on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, util
from typing import Literal

import torch

from finrl_pod import __version__
from finrl_pod.errors import EnvironmentLacks, FinrlPodError, InputError

ALPACA_KEYS = ("APCA_API_KEY_ID", "APCA_API_SECRET_KEY")
CORE = ("torch", "numpy", "pandas")
SUITE = ("pyarrow", "skfolio", "TA-Lib", "arch", "pydantic", "typer", "rich", "plotly", "safetensors", "gymnasium")
INSTALL = "run make setup, or pip install -e '.[sources,dev]' -c constraints.txt"


@dataclass(frozen=True)
class Finding:
    """One thing looked at.

    status: "ok"; "missing", something optional that would not work; "broken", the suite does not work without it.
    mend: what to do about it, empty when ok.
    """

    group: Literal["versions", "devices", "data", "optional"]
    name: str
    status: Literal["ok", "missing", "broken"]
    value: str
    mend: str = ""


def examine() -> list[Finding]:
    """Look at everything. Never raises: what fails becomes a finding."""
    return [*_versions(), *_devices(), *_data(), *_optional()]


def installed_versions() -> dict[str, str]:
    """Versions of what a result depends on, for reports; what is not installed is left out."""
    versions = {"finrl_pod": __version__, "python": platform.python_version()}
    for name in (*CORE, *SUITE):
        if (version := _version(name)) is not None:
            versions[name] = version
    return versions


def _versions() -> Iterator[Finding]:
    yield Finding("versions", "finrl_pod", "ok", __version__)
    yield Finding(
        "versions", "python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    )
    for name in CORE:
        yield _core(name)
    for name in SUITE:
        version = _version(name)
        if version is None:
            yield Finding("versions", name, "broken", "not installed", INSTALL)
        else:
            yield Finding("versions", name, "ok", version)


def _core(name: str) -> Finding:
    """Really import it: a torch that is installed but lacks a shared library fails only then."""
    try:
        __import__(name)
    except (ImportError, OSError) as error:
        return Finding("versions", name, "broken", f"cannot be imported: {error}", INSTALL)
    return Finding("versions", name, "ok", _version(name) or "unknown")


def _devices() -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError):
        return
    yield Finding("devices", "cpu", "ok", f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads")
    yield from _load()
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(i)
            yield Finding("devices", f"cuda:{i}", "ok", f"{device.name}, {device.total_memory / 2**30:.0f} GiB")
    elif torch.version.cuda is None:
        mend = "none needed on a machine without an NVIDIA GPU; with one, install a CUDA build of torch"
        yield Finding("devices", "cuda", "missing", "this torch is built for CPUs alone", mend)
    else:
        yield Finding("devices", "cuda", "missing", "no device", "check nvidia-smi and the driver if there is a GPU")
    from finrl_pod.native.library import SWITCH, cache_folder, find_compiler

    compiler = find_compiler()
    if compiler is None:
        mend = "install g++ or clang++; without one the plain versions of the kernels run, which are slower"
        yield Finding("devices", "kernels", "missing", "no C++ compiler", mend)
    elif os.environ.get(SWITCH, "1") == "0":
        mend = f"unset {SWITCH}; the plain versions of the kernels run, which are slower"
        yield Finding("devices", "kernels", "missing", "switched off", mend)
    else:
        yield Finding("devices", "kernels", "ok", f"built by {compiler}, kept in {cache_folder()}")


def _load() -> Iterator[Finding]:
    """Threads that wait for each other spin: beside other work they take from each other what is left."""
    if not hasattr(os, "getloadavg"):  # not on Windows
        return
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    idle = max(cores - round(load), 0)
    value = f"{idle} of {cores} (load of the last minute: {load:.1f})"
    if idle * 2 > cores:
        yield Finding("devices", "idle cores", "ok", value)
    else:
        mend = "stop other work, or set OMP_WAIT_POLICY=PASSIVE: threads then sleep instead of spinning for each other"
        yield Finding("devices", "idle cores", "missing", value, mend)


def _data() -> Iterator[Finding]:
    mend = "make the data folder readable, or name another in the environment variable FINRL_POD_DATA"
    try:
        from finrl_pod.data.store import Store

        names = [manifest.name for manifest in Store().list()]
    except ImportError as error:
        yield Finding("data", "store", "broken", f"cannot be imported: {error}", INSTALL)
    except (FinrlPodError, OSError) as error:
        yield Finding("data", "store", "broken", str(error), mend)
    else:
        yield Finding("data", "data sets", "ok", ", ".join(names))


def _extra(name: str, purpose: str) -> str:
    return f"pip install '.[{name}]' -c constraints.txt, {purpose}"


def _optional() -> Iterator[Finding]:
    parts = (
        ("yfinance", "yfinance", _extra("sources", "to fetch prices from Yahoo")),
        ("alpaca-py", "alpaca", _extra("sources", "to fetch bars from Alpaca")),
        ("SQLAlchemy", "sqlalchemy", _extra("paper", "for the paper-trading daemon")),
        ("structlog", "structlog", _extra("paper", "for the paper-trading daemon")),
        ("prometheus-client", "prometheus_client", _extra("paper", "for the daemon's metrics")),
        ("apprise", "apprise", _extra("paper", "for the daemon's alerts")),
        ("aiohttp", "aiohttp", _extra("paper", "for the stand-in of the broker")),
        ("streamlit", "streamlit", _extra("dashboard", "for the dashboard")),
        ("argon2-cffi", "argon2", _extra("dashboard", "for the dashboard's password")),
        ("mujoco", "mujoco", _extra("mujoco", "for train --env gym:Hopper-v5 and the like")),
        ("isaacgym", "isaacgym", "on no package index (NVIDIA's developer site has it); nothing here needs it"),
        ("ray", "ray", "pip install ray; nothing here needs it"),
    )
    for name, module, mend in parts:
        if util.find_spec(module) is None:
            yield Finding("optional", name, "missing", "not installed", mend)
        else:
            yield Finding("optional", name, "ok", _version(name) or "installed")
    absent = [key for key in ALPACA_KEYS if not os.environ.get(key)]
    if absent:
        mend = f"set {' and '.join(absent)} in the environment, to fetch bars from Alpaca"
        yield Finding("optional", "Alpaca keys", "missing", f"{', '.join(absent)} not set", mend)
    else:
        yield Finding("optional", "Alpaca keys", "ok", "both set")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def pick_device(name: str) -> torch.device:
    """auto, cpu or cuda. Raises InputError for another name, EnvironmentLacks for a CUDA device that is not there."""
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device must be auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise EnvironmentLacks(
            "device cuda was asked for but this machine has none that torch can use; use --device cpu"
        )
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
