"""Records what the tests launch in the interpreter of Triton, if LAUNCHES names a file.

LAUNCHES=benchmarks/test_launches.json TRITON_INTERPRET=1 python -m pytest -k triton tests/gpu
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.gpu.ahead_of_time import Signature, launch_rows, signature_of
from benchmarks.harness.rows import as_json
from finrl_pod.files import write_text
from finrl_pod.native.kernel_launch import Launch, planned_launches

LAUNCHES = "LAUNCHES"


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
