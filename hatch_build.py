"""Build hook of wheels: kernels compiled for Linux on x86-64. Without a compiler, wheels carry their sources alone."""

from __future__ import annotations

import platform
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
OLDEST = 17  # manylinux_2_17: no tag of an older glibc exists


class KernelHook(BuildHookInterface):  # type: ignore[misc]
    """Compiles every C++ source for each level of x86-64 and tags the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the libraries to the wheel. Not for editable installs, which compile at first use."""
        if version == "editable" or (sys.platform, platform.machine()) != ("linux", "x86_64"):
            return
        sys.path.insert(0, str(ROOT))
        from finrl_pod.native.prebuild import find_compiler, prebuild

        compiler = find_compiler()
        if compiler is None:
            self.app.display_warning("no C++ compiler: the wheel carries no kernels, which are compiled at first use")
            return
        self._folder = Path(tempfile.mkdtemp(prefix="finrl-pod-kernels-"))
        packages = [ROOT / package for package in self.build_config.packages]
        sources = sorted(source for package in packages for source in package.rglob("*.cpp"))
        libraries = prebuild(sources, self._folder, compiler)
        build_data["force_include"] |= {str(path): f"finrl_pod/native/prebuilt/{path.name}" for path in libraries}
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_{max(map(newest_glibc, libraries))}_x86_64"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the libraries."""
        if hasattr(self, "_folder"):
            shutil.rmtree(self._folder)


def newest_glibc(library: Path) -> int:
    """Minor version of the newest glibc 2.x that a library needs."""
    return max([OLDEST, *(int(found) for found in re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes()))])
