"""Checks of the installation (versions, devices, data, optional packages), and the device to train on."""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, metadata, util
from typing import TYPE_CHECKING, Literal, NamedTuple

from finrl_pod import __version__
from finrl_pod.errors import FinrlPodError, InputError, SetupError, count_text
from finrl_pod.files import HOME_VARIABLE, home, reserve_room
from finrl_pod_app.setup.ray_check import ray_fault

if TYPE_CHECKING:
    import torch

CORE = ("torch", "numpy", "pandas")
SUITE = ("pyarrow", "scipy", "arch", "pydantic", "typer", "rich", "plotly", "safetensors", "gymnasium")
FEATURES = ("TA-Lib",)  # optional, but features depend on its version
INSTALL = "install finrl_pod again, from its checkout: make setup, or pip install . in an environment of your own"


class OptionalPackage(NamedTuple):
    """A package that some features need. name: distribution. module: top-level module. extra: extra of finrl-pod."""

    name: str
    module: str
    extra: str
    purpose: str

    @property
    def install_command(self) -> str:
        return f"pip install 'finrl-pod[{self.extra}]'"


OPTIONAL_PACKAGES = tuple(
    OptionalPackage(*row)
    for row in (
        ("yfinance", "yfinance", "sources", "to fetch prices from Yahoo"),
        ("alpaca-py", "alpaca", "sources", "to fetch bars from Alpaca"),
        ("tenacity", "tenacity", "sources", "to repeat failed requests"),
        ("TA-Lib", "talib", "indicators", "for the technical indicators of FinRL as features"),
        ("SQLAlchemy", "sqlalchemy", "paper", "for the paper-trading daemon"),
        ("exchange_calendars", "exchange_calendars", "paper", "for the trading hours of the daemon"),
        ("structlog", "structlog", "paper", "for the paper-trading daemon"),
        ("prometheus-client", "prometheus_client", "paper", "for the daemon's metrics"),
        ("apprise", "apprise", "paper", "for the daemon's alerts"),
        ("aiohttp", "aiohttp", "paper", "for the fake Alpaca server"),
        ("streamlit", "streamlit", "dashboard", "for the dashboard"),
        ("argon2-cffi", "argon2", "dashboard", "for the dashboard's password"),
        ("s3fs", "s3fs", "s3", "for a registry in an S3 bucket"),
        ("mujoco", "mujoco", "mujoco", "for MuJoCo environments such as gym:Hopper-v5"),
        ("pillow", "PIL", "mujoco", "for pictures of played episodes"),
        ("ray", "ray", "ray", "for tournaments on a Ray cluster"),
        ("tensorboard", "tensorboard", "tensorboard", "to show learning curves"),
        ("onnx", "onnx", "onnx", "to export agents as ONNX"),
        ("onnxscript", "onnxscript", "onnx", "to export agents as ONNX"),
    )
)


def missing_package(error: ModuleNotFoundError) -> str | None:
    """A sentence that says how to install the optional package whose import failed; None for any other module."""
    module = (error.name or "").partition(".")[0]
    for package in OPTIONAL_PACKAGES:
        if package.module == module:
            return f"this needs {package.name}: {package.install_command}"
    return None


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    status: "ok"; "missing": not available, and nothing fails without it; "broken": required and not working.
    need: "required"; "optional": can be installed; "machine": depends on the hardware or its operating system.
    fix: what to do about it and what it would give, empty when ok.
    """

    group: Literal["versions", "devices", "data", "optional"]
    name: str
    status: Literal["ok", "missing", "broken"]
    value: str
    fix: str = ""
    need: Literal["required", "optional", "machine"] = "required"


@dataclass(frozen=True)
class KernelFinding(Finding):
    """The finding about kernels. found: prebuilt, compiled, or to be compiled here; expected: C++ sources."""

    found: int = 0
    expected: int = 0


def check_installation() -> list[Finding]:
    """Run every check. Never raises: a check that fails becomes a finding."""
    return [*_versions(), *_devices(), *_data(), *_optional()]


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages a result depends on; packages that are not installed are left out."""
    versions = {"finrl_pod": __version__, "python": platform.python_version()}
    for name in (*CORE, *SUITE, *FEATURES):
        if (version := _version(name)) is not None:
            versions[name] = version
    return versions


def _versions() -> Iterator[Finding]:
    yield Finding("versions", "finrl_pod", "ok", __version__)
    yield Finding(
        "versions", "python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    )
    for name in CORE:
        try:
            import_module(name)  # an installed torch that lacks a shared library fails only then
            yield Finding("versions", name, "ok", _version(name) or "unknown")
        except (ImportError, OSError) as error:
            yield Finding("versions", name, "broken", f"cannot be imported: {error}", INSTALL)
    for name in SUITE:
        if (version := _version(name)) is None:
            yield Finding("versions", name, "broken", "not installed", INSTALL)
        else:
            yield Finding("versions", name, "ok", version)


def _devices() -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError):
        return
    threads = count_text(torch.get_num_threads(), "thread")
    yield Finding("devices", "cpu", "ok", f"{count_text(os.cpu_count() or 1, 'core')}, torch uses {threads}")
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(i)
            yield Finding("devices", f"cuda:{i}", "ok", f"{device.name}, {device.total_memory / 2**30:.0f} GiB")
    elif torch.version.cuda is None:
        fix = "nothing to do without an NVIDIA GPU; with one, install a CUDA build of torch to train faster"
        yield Finding("devices", "cuda", "missing", "CPU-only build of torch", fix, "machine")
    else:
        fix = "nothing to do without an NVIDIA GPU; with one, check nvidia-smi and the driver"
        yield Finding("devices", "cuda", "missing", "no device", fix, "machine")
    yield _kernels()


def _kernels() -> Finding:
    """Whether kernels are prebuilt, or can be compiled here."""
    from finrl_pod.native.library import SWITCH, cache_folder, is_prebuilt
    from finrl_pod.native.prebuild import PREBUILT, CompilationError, check_compiler, find_compiler
    from finrl_pod_app.setup.kernels import kernel_sources

    sources = kernel_sources()
    prebuilt_count = sum(map(is_prebuilt, sources))
    slower = "the slower plain versions, up to nine times in training"

    def missing(found: int, value: str, fix: str) -> Finding:
        return KernelFinding("devices", "kernels", "missing", value, fix, "optional", found, len(sources))

    def complete(value: str) -> Finding:
        return KernelFinding("devices", "kernels", "ok", value, found=len(sources), expected=len(sources))

    if os.environ.get(SWITCH, "1") == "0":
        return missing(0, "switched off", f"unset {SWITCH}; {slower}, run while it is set")
    if prebuilt_count == len(sources):
        return complete(f"prebuilt in the wheel: {PREBUILT}")
    compiler = find_compiler()
    lack = f"{len(sources) - prebuilt_count} of {len(sources)} kernels are not prebuilt for this machine"
    if compiler is None:
        fix = f"install g++ or clang++; {slower}, run without one"
        return missing(prebuilt_count, f"{lack}, and there is no C++ compiler", fix)
    try:
        check_compiler(compiler)
    except CompilationError as error:
        fix = f"install another g++ or clang++, or name one in CXX; {slower}, run without one"
        return missing(prebuilt_count, f"{lack}, and {error}", fix)
    share = f"{len(sources) - prebuilt_count} of {len(sources)} " if prebuilt_count else ""
    return complete(f"{share}compiled by {compiler}, cached in {cache_folder()}")


def _data() -> Iterator[Finding]:
    try:
        reserve_room(home())
    except OSError as error:
        step = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "make it writable"
        fix = f"{step}, or set {HOME_VARIABLE} to another folder"
        yield Finding("data", "home", "broken", f"cannot write {error.filename}: {error.strerror}", fix)
    else:
        yield Finding("data", "home", "ok", str(home()))
    fix = "make the data folder readable, or set FINRL_POD_DATA to another folder"
    try:
        from finrl_pod.data.store import Store

        names = [manifest.name for manifest in Store().list()]
    except ImportError as error:
        yield Finding("data", "store", "broken", f"cannot be imported: {error}", INSTALL)
    except (FinrlPodError, OSError) as error:
        yield Finding("data", "store", "broken", str(error), fix)
    else:
        yield Finding("data", "data sets", "ok", ", ".join(names))


def _optional() -> Iterator[Finding]:
    for package in OPTIONAL_PACKAGES:
        if util.find_spec(package.module) is None:
            fix = f"{package.install_command}, {package.purpose}"
            yield Finding("optional", package.name, "missing", "not installed", fix, "optional")
        else:
            yield Finding("optional", package.name, "ok", _version(package.name) or "installed")
    if (fault := ray_fault()) is not None:
        yield Finding("optional", "ray start", "missing", *fault, "optional")
    elif util.find_spec("ray") is not None:
        yield Finding("optional", "ray start", "ok", "its servers run here, and may listen on 127.0.0.1")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def pick_device(name: str) -> torch.device:
    """Return the device for "auto", "cpu" or "cuda".

    Raises InputError for any other name and SetupError when CUDA is requested and not available.
    """
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device must be auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise SetupError("no CUDA device is available to torch; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
