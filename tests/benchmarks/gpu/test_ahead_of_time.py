"""Kernels that benchmark and presets launch, compiled for an H100 without a device."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu.ahead_of_time import signature_of
from finrl_pod.native.kernel_launch import INTERPRET, Launch

ROOT = Path(__file__).parents[3]
STORED = ROOT / "benchmarks" / "ahead_of_time.json"
TEST_LAUNCHES = ROOT / "benchmarks" / "test_launches.json"
# The Triton that the CUDA builds of a torch require; the metadata of CPU builds do not name it.
TRITON_OF_TORCH = {"2.13": "3.7.1"}


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


def test_ahead_of_time_uses_the_triton_that_torch_requires() -> None:
    pins = dict(re.findall(r"^(torch|triton)==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M))
    assert pins["triton"] == TRITON_OF_TORCH[".".join(pins["torch"].split(".")[:2])]
    assert {row["triton"] for row in rows_of(STORED)} == {pins["triton"]}


@pytest.mark.slow
def test_ahead_of_time_default_variants_do_not_spill(tmp_path: Path) -> None:
    """The stored rows are those of the kernels as they are."""
    assert importlib.metadata.version("triton") in TRITON_OF_TORCH.values()
    out = tmp_path / "rows.json"
    environment = {name: value for name, value in os.environ.items() if name != INTERPRET}
    command = [sys.executable, "-m", "benchmarks.gpu.ahead_of_time", "--arch", "90", "--out", str(out)]
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]
    rows = rows_of(out)
    assert rows == rows_of(STORED)
    assert {row["arch"] for row in rows} == {90}
    assert all(row["registers"] > 0 for row in rows)
    assert not [row for row in rows if row["default"] and row["spill_bytes"]]
    assert {row["kernel"] for row in rows if row["default"]} >= {"market_step", "philox", "ppo_loss", "adam"}


@pytest.mark.slow
def test_variants_compiled_ahead_of_time_are_run_by_the_tests() -> None:
    """In the interpreter, in other sizes: each kernel with the same switches."""
    launches = json.loads(TEST_LAUNCHES.read_text(encoding="utf-8"))["launches"]

    def variants(rows: list[dict[str, Any]]) -> set[tuple[str, ...]]:
        return {(row["kernel"], *re.findall(r"\w+=(?:True|False|[a-z]+)", row["constants"])) for row in rows}

    assert variants(rows_of(STORED)) <= variants(launches)


class Kernel:
    """Stands for a function that Triton has wrapped."""

    __name__ = "kernel"
    fn = SimpleNamespace(__module__="kernels")


def test_ahead_of_time_signatures_are_what_triton_distinguishes() -> None:
    x = torch.zeros(64, dtype=torch.bfloat16)

    def signature(*arguments: Any) -> tuple[Any, ...]:
        return signature_of(Launch(Kernel(), (1,), arguments, {"N": 3})).arguments

    assert signature(x, x[8:], x[1:], None) == (("bfloat16", True), ("bfloat16", True), ("bfloat16", False), None)
    assert signature(1, 32, 48, 33) == (1, 16, 16, 17)
    assert signature(2**31, 2**31 + 1) == (2**35, 17 * 2**31)
    assert signature_of(Launch(Kernel(), (1,), (), {"N": 3, "A": 2})).constants == (("A", 2), ("N", 3))
