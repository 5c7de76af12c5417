"""Compile the C++ kernels of all packages before they are needed, so that no training waits for a compiler.

`make setup` runs this file; tournaments and `fp.train` call it in case it was not, or the sources have changed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import finrl_pod_envs

import finrl_pod
from finrl_pod.native.library import compile_sources, uncompiled

STAGE = "compiling kernels for this processor, once"


def compile_kernels(on_start: Callable[[str], None] = lambda _: None) -> None:
    """Compile the kernels that are not in the cache, on all cores.

    on_start: called with the stage name if there are any.
    """
    if missing := uncompiled(kernel_sources()):
        on_start(STAGE)
        compile_sources(missing)


def kernel_sources() -> list[Path]:
    folders = [Path(str(package.__file__)).parent for package in (finrl_pod, finrl_pod_envs)]
    return sorted(source for folder in folders for source in folder.rglob("*.cpp"))


if __name__ == "__main__":
    compile_kernels(partial(print, file=sys.stderr))
