"""The checks of kernels in a release: in the wheel, and in an environment in which it is installed."""

from __future__ import annotations

import contextlib
import json
import zipfile
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest

from finrl_pod.native.prebuild import LEVELS, prebuilt_name

ROOT = Path(__file__).parents[1]
FOLDERS = {"finrl_pod": ROOT / "finrl_pod", "finrl_pod_envs": ROOT / "envs/finrl_pod_envs"}


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The release program, on Linux on x86-64."""
    spec = util.spec_from_file_location("make_release", ROOT / "release/make_release.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.sys, "platform", "linux")
    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")
    return module


def write_wheel(path: Path, missing: int) -> Path:
    """A wheel with all C++ files, and an empty library of each source and level but the last ones."""
    sources = [source for folder in FOLDERS.values() for source in sorted(folder.rglob("*.cpp"))]
    names = [prebuilt_name(source, level) for source in sources for level in LEVELS]
    with zipfile.ZipFile(path, "w") as wheel:
        for package, folder in FOLDERS.items():
            for file in sorted(x for x in folder.rglob("*") if x.suffix in (".cpp", ".h") or x.name == "prebuild.py"):
                wheel.write(file, f"{package}/{file.relative_to(folder)}")
        for name in names[: len(names) - missing]:
            wheel.writestr(f"finrl_pod/native/prebuilt/{name}", "")
    return path


def test_wheel_with_every_kernel_passes(release: ModuleType, tmp_path: Path) -> None:
    release.check_kernels(write_wheel(tmp_path / "finrl_pod.whl", missing=0))


def test_wheel_that_lacks_one_kernel_is_refused(release: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="lacks 1 of 16 prebuilt kernels: observation-x86-64-v3-"):
        release.check_kernels(write_wheel(tmp_path / "finrl_pod.whl", missing=1))


@pytest.mark.parametrize(("found", "message"), [(8, None), (7, "does not load its 8 kernels")])
def test_installed_wheel_must_load_every_kernel(
    release: ModuleType, tmp_path: Path, found: int, message: str | None
) -> None:
    wheel = write_wheel(tmp_path / "finrl_pod.whl", missing=0)
    program = tmp_path / "venv/bin/finrl-pod"
    program.parent.mkdir(parents=True)
    document = json.dumps({"findings": [{"name": "kernels", "status": "ok", "found": found, "expected": 8}]})
    program.write_text(f"#!/bin/sh\n/bin/cat <<'end'\n{document}\nend\n")
    program.chmod(0o755)
    with contextlib.nullcontext() if message is None else pytest.raises(SystemExit, match=message):
        release.check_installed_kernels(program.parent / "python", wheel)
