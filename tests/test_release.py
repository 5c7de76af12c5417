"""The release's check of the kernels in a wheel."""

from __future__ import annotations

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
