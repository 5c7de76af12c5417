"""The plan of the GPU path: its counts do not grow, and its recorder finds what prevents capture."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import device
from benchmarks.gpu import device as nvml
from benchmarks.gpu.launches import record
from benchmarks.gpu.plan import PLAN_FILE, plan_iteration
from benchmarks.runner import main
from finrl_pod.native.device import is_triton_installed

COUNTED = ("env_launches", "ppo_mlp_launches", "ppo_equivariant_launches", "equivariant_bytes")
OBSTACLES = ("syncs", "moved_buffers", "baked_numbers")


def plan(*flags: str) -> dict[str, Any]:
    """Rows of `gpu --plan` by name. In a separate process, where Triton's interpreter can be turned on."""
    command = [sys.executable, "-m", "benchmarks", "gpu", "--plan", "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {row["name"]: row["value"] for row in json.loads(done.stdout)["rows"]}


@pytest.mark.slow
@pytest.mark.skipif(not is_triton_installed(), reason="needs triton")
def test_counts_are_at_most_the_stored_ones() -> None:
    stored = {row["name"]: row["value"] for row in json.loads(PLAN_FILE.read_text(encoding="utf-8"))["rows"]}
    counted = plan()
    for name in (*COUNTED, *OBSTACLES):
        assert counted[name] <= stored[name], name
    assert min(counted[name] for name in COUNTED) >= 1


@pytest.mark.slow
def test_recorder_counts_what_runs_and_no_views() -> None:
    x = torch.ones(8, 4)
    recording = record(lambda: (x.t() @ x).sum())
    assert recording.launches == ["aten.mm.default", "aten.sum.default"]
    assert recording.moved_bytes == 4 * (32 + 32 + 16 + 16 + 1)
    assert recording.widest == 64


@pytest.mark.slow
def test_recorder_finds_syncs() -> None:
    x = torch.ones(4)
    assert record(lambda: float(x.sum())).syncs == ["aten._local_scalar_dense.default"]
    assert record(lambda: x[x > 0]).syncs
    assert record(lambda: torch.tensor([1.0]) + x).syncs
    assert not record(lambda: x[torch.arange(2)] + 1.0).syncs


@pytest.mark.slow
def test_recorder_finds_moved_buffers_and_baked_numbers() -> None:
    x, buffers = torch.ones(4), [torch.ones(4), torch.ones(4)]
    first, second = (record(lambda b=b, i=i: x * b + i) for i, b in enumerate(buffers))  # type: ignore[misc]
    assert first.moved_buffers(second) == ["aten.mul.Tensor"]
    assert first.baked_numbers(second) == ["aten.add.Tensor"]
    assert not first.moved_buffers(first)
    assert not first.baked_numbers(first)


def test_an_iteration_learns() -> None:
    run, samples = plan_iteration("mlp", accounts=32, horizon=4, minibatches=2)
    assert samples == 128
    before = run.learner.algorithm.weights()["log_std"].clone()  # type: ignore[attr-defined]
    run()
    assert not torch.equal(before, run.learner.algorithm.weights()["log_std"])  # type: ignore[attr-defined]


def test_device_script_saves_every_row_at_once(tmp_path: Path) -> None:
    """With no time left after the first row, that row is in the file."""
    out = tmp_path / "rows.json"
    assert main(["gpu", "--device", "cpu", "--minutes", "0", "--out", str(out)]) == 0
    assert [row["name"] for row in json.loads(out.read_text(encoding="utf-8"))["rows"]] == ["triton"]


@pytest.mark.slow
def test_leaked_future_row_says_how_long_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "LEAK_SHARE", 0.2)
    (row,) = device._leaked_future(600, torch.device("cpu"))
    assert row.value > 0
    assert row.config["share"] >= 0.2
    assert "error" not in row.config


TESTS = """
import pytest

def test_passes():
    pass

@pytest.mark.skipif(True, reason="never here")
def test_skipped():
    raise AssertionError

def test_fails():
    raise ValueError("broken")
"""


@pytest.mark.slow
def test_tests_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_a.py").write_text(TESTS)
    monkeypatch.setattr(device, "TEST_FOLDER", tmp_path)
    (row,) = device._tests(torch.device("cpu"))
    assert (row.value, row.config["skipped"]) == (1, 1)
    assert "1 failed" in row.config["error"]


def test_utilisation_says_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert nvml.Utilisation(torch.device("cpu")).config == {}
    monkeypatch.setattr(nvml, "LIBRARY", "libnone.so")
    with nvml.Utilisation(torch.device("cuda")) as utilisation:
        pass
    assert utilisation.config == {"utilisation": "not measured: libnone.so is missing"}
