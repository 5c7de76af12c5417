"""The plan of the GPU path: its counts do not grow, and its recorder finds what prevents capture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import device
from benchmarks.gpu import device as nvml
from benchmarks.gpu.kernel_costs import COUNTS
from benchmarks.gpu.launches import record
from benchmarks.gpu.live_memory import peak_memory
from benchmarks.gpu.plan import (
    PLAN_FILE,
    POLICIES,
    PolicyName,
    env_launches,
    launches_of_minibatch,
    obstacle_rows,
    plan_iteration,
    planned_step,
    without_data,
)
from benchmarks.gpu.rooflines import roofline
from benchmarks.harness.rows import Row, Section, document, single_row
from benchmarks.runner import main
from finrl_pod.errors import ConfigError
from finrl_pod.native.kernel_launch import is_triton_installed

needs_triton = pytest.mark.skipif(not is_triton_installed(), reason="needs triton")

STORED = json.loads(PLAN_FILE.read_text(encoding="utf-8"))


@needs_triton
@pytest.mark.slow
def test_counts_are_at_most_the_stored_ones() -> None:
    rows = {row["name"]: row["value"] for row in STORED["rows"]}
    for policy in POLICIES:
        assert 1 <= launches_of_minibatch(policy) <= rows[f"ppo_{policy}_launches"]
    assert 1 <= env_launches("portfolio", "equal_weight") <= rows["env_launches"]
    assert all(row.value == 0 == rows[row.name] for row in obstacle_rows(None))


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_memory_is_within_the_goal_and_as_stored(policy: PolicyName) -> None:
    """5 GiB and 6.5 GiB at 2^17 accounts x 64 steps; counted in one epoch at an eighth of the accounts."""
    limit = {"mlp": 640, "equivariant": 832}[policy]
    with without_data():
        run, samples = plan_iteration(policy, accounts=2**14, horizon=64, minibatches=4, epochs=1)
        memory = peak_memory(run)
    assert memory.total / samples <= limit
    assert memory.total / samples == pytest.approx(STORED["peak_bytes_per_step"][policy], rel=0.1)
    assert sum(memory.by_function.values()) == memory.total


@needs_triton
@pytest.mark.slow
def test_costs_of_a_market_step() -> None:
    work = planned_step(2**12)
    assert work.recording.launches == ["triton.market_step"]
    (launch,) = work.recording.kernels
    assert launch.grid == (2**12 // 32,)
    account = 31 + 30  # cash and holdings, and virtual holdings
    assert work.recording.moved_bytes / work.samples >= 4 * 4 * account
    row = roofline("market_step", work.recording, work.samples, goal=1e9)
    assert row.launches == 1
    assert row.bound == "launches"
    assert row.samples_per_second == pytest.approx(work.samples / row.seconds, rel=1e-3)


@needs_triton
def test_every_kernel_has_a_cost() -> None:
    from finrl_pod_envs import triton_step

    from finrl_pod.native import triton_philox
    from finrl_pod.rl.fused import triton_policy

    kernels = {
        name
        for module in (triton_step, triton_philox, triton_policy)
        for name, kernel in vars(module).items()
        if hasattr(kernel, "arg_names") and not name.startswith("_") and kernel.__module__ == module.__name__
    }
    assert kernels == set(COUNTS)


@pytest.mark.slow
def test_peak_counts_what_lives_at_a_time() -> None:
    def work() -> None:
        first = torch.ones(1000)
        second = first + 1
        del first
        second.add_(1)
        third = second.view(10, 100) * 2
        del second, third
        torch.ones(500)

    assert peak_memory(work).total == 2 * 4000


@pytest.mark.slow
def test_section_goes_into_the_document_beside_the_rows() -> None:
    result = document([], {"cores": 2}, [Section("grids", [{"x": 1}])])
    assert result == {"rows": [], "machine": {"cores": 2}, "grids": [{"x": 1}]}


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


@needs_triton
def test_a_kernel_that_does_not_compile_costs_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(_: torch.device) -> list[Row]:
        return [single_row("env", 5.0, "steps/s")]

    rows = [("env", measure), ("planted", device._compile_error), ("env_again", measure)]
    monkeypatch.setattr(device, "_measurements", lambda *_: iter(rows))
    first, planted, last = device.device_rows(torch.device("cpu"), 1.0, is_compile_planted=True)
    assert (first.value, last.value) == (5.0, 5.0)
    assert "error" not in last.config
    assert planted.config["error"] == "CompilationError: planted: the kernel cannot be compiled"


@pytest.mark.parametrize(("plan", "fault"), [(True, "compile"), (False, "copy")])
def test_fault_of_the_other_mode_is_refused(plan: bool, fault: Any) -> None:
    with pytest.raises(ConfigError, match=f"--plant {fault}"):
        device.GpuSettings(plan=plan, plant=fault).check()


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
    monkeypatch.setattr(nvml, "LIBRARY", "libnone.so")
    with pytest.raises(OSError, match=r"libnone\.so"):
        nvml.Utilisation(torch.device("cuda"))
