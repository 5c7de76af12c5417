"""Compile all kernels ahead, for images without a compiler: python -m finrl_pod.native.prebuild FOLDER PACKAGE...

The libraries are found at run time through FINRL_POD_KERNELS=FOLDER, see `library`.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from finrl_pod.errors import SetupError
from finrl_pod.native.library import find_compiler, prebuild


def prebuild_packages(folder: Path, packages: Sequence[str]) -> list[Path]:
    """Compile every C++ source of installed packages; returns the libraries.

    Raises SetupError without a compiler, for a package that is not installed or has no source, and if compiling fails.
    """
    compiler = find_compiler()
    if compiler is None:
        raise SetupError("prebuilding kernels needs a C++ compiler: install g++, or set CXX")
    libraries = []
    for package in packages:
        spec = importlib.util.find_spec(package)
        roots = (spec.submodule_search_locations or []) if spec is not None else []
        sources = sorted(source for root in roots for source in Path(root).rglob("*.cpp"))
        if not sources:
            raise SetupError(f"package {package} is not installed, or has no C++ sources")
        for source in sources:
            try:
                libraries += prebuild(source, folder, compiler)
            except subprocess.SubprocessError as error:
                text = getattr(error, "stderr", None) or str(error).encode()
                raise SetupError(f"{source} could not be compiled: {text.decode(errors='replace').strip()}") from None
    return libraries


if __name__ == "__main__":
    for path in prebuild_packages(Path(sys.argv[1]), sys.argv[2:]):
        sys.stdout.write(f"{path}\n")
