"""Where the tests of Triton kernels run; records what they launch in its interpreter, if LAUNCHES names a file.

LAUNCHES=benchmarks/test_launches.json TRITON_INTERPRET=1 python -m pytest -k triton tests/gpu
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.ahead_of_time import Signature, launch_rows, signature_of
from benchmarks.harness.rows import as_json
from finrl_pod.files import write_text
from finrl_pod.native.kernel_launch import Launch, is_interpreted, is_triton_installed, planned_launches

LAUNCHES = "LAUNCHES"
DEVICE = "cpu" if is_interpreted() else "cuda"
needs_triton = pytest.mark.skipif(
    not (is_triton_installed() and (is_interpreted() or torch.cuda.is_available())),
    reason="needs triton, and a CUDA device or TRITON_INTERPRET=1",
)


@pytest.fixture(scope="session", autouse=True)
def _recorded_launches() -> Iterator[None]:
    if LAUNCHES not in os.environ:
        yield
        return
    signatures: set[Signature] = set()

    def run(launch: Launch) -> None:
        signatures.add(signature_of(launch))
        launch.kernel[launch.grid](*launch.args, **launch.constants)

    with planned_launches(run):
        yield
    write_text(Path(os.environ[LAUNCHES]), as_json({"launches": launch_rows(signatures)}))
