"""Build hooks: kernels compiled for Linux on x86-64, and a README whose links lead to the repository.

Without a compiler, wheels carry the kernels' sources alone.
"""

from __future__ import annotations

import platform
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).parent
REPOSITORY = "https://github.com/finrl-pod/finrl-pod"
RAW = "https://raw.githubusercontent.com/finrl-pod/finrl-pod"
OLDEST = 17  # manylinux_2_17: no tag of an older glibc exists


class KernelHook(BuildHookInterface):  # type: ignore[misc]
    """Compiles every C++ source for each level of x86-64 and tags the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the libraries to the wheel. Editable installs compile at first use instead."""
        if version == "editable" or (sys.platform, platform.machine()) != ("linux", "x86_64"):
            return
        sys.path.insert(0, str(ROOT))
        from finrl_pod.native.prebuild import CompilationError, find_compiler, prebuild

        compiler = find_compiler()
        if compiler is None:
            self.app.display_warning("no C++ compiler: the wheel has no kernels; they are compiled at first use")
            return
        self._folder = Path(tempfile.mkdtemp(prefix="finrl-pod-kernels-"))
        packages = [ROOT / package for package in self.build_config.packages]
        sources = sorted(source for package in packages for source in package.rglob("*.cpp"))
        try:
            libraries = prebuild(sources, self._folder, compiler)
        except CompilationError as error:
            shutil.rmtree(self._folder)
            self.app.abort(
                f"the kernels are not compiled: {error}; build again when the machine is less busy, or set CXX to "
                "another compiler"
            )
        build_data["force_include"] |= {str(path): f"finrl_pod/native/prebuilt/{path.name}" for path in libraries}
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_{max(map(newest_glibc, libraries))}_x86_64"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the libraries."""
        if hasattr(self, "_folder"):
            shutil.rmtree(self._folder)


class ReadmeHook(MetadataHookInterface):  # type: ignore[misc]
    """Sets the description to README.md with absolute links, as package indexes need."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme`."""
        text = absolute_links((ROOT / "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute_links(markdown: str, branch: str = "main") -> str:
    """Markdown with absolute links: to the repository, and for pictures to the raw files."""
    markdown = re.sub(r"(!\[[^]]*\]\()(?![a-z]+:|#)", rf"\1{RAW}/{branch}/", markdown)
    return re.sub(
        r"((?<!!)\[(?:[^][]|!\[[^]]*\]\([^)]*\))*\]\()(?![a-z]+:|#)", rf"\1{REPOSITORY}/blob/{branch}/", markdown
    )


def newest_glibc(library: Path) -> int:
    """Minor version of the newest glibc 2.x that a library needs."""
    return max([OLDEST, *(int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes()))])
