"""A `finrl-pod tournament` process that is repeatedly killed or interrupted ends like an uninterrupted one."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from finrl_pod_app.setup.presets import config_text

from finrl_pod.settings.run import load
from tests.app.command import call, start
from tests.app.small_run import fill_store, run_tournament, small_config

# Long enough for the end of a generation to be observed before the next one ends.
SAMPLES, GENERATIONS = 1_280, 3
TIMEOUT_SECONDS = 60.0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store and a config."""
    folder = tmp_path_factory.mktemp("resume")
    fill_store(folder / "store")
    (folder / "tiny.toml").write_text(
        config_text(small_config(samples_per_generation=SAMPLES, generations=GENERATIONS))
    )
    return folder


@pytest.fixture(scope="module")
def uninterrupted(folder: Path) -> Path:
    """The folder of an uninterrupted run."""
    run_in_process(folder, folder / "uninterrupted")
    return folder / "uninterrupted"


def run_in_process(folder: Path, out: Path, *, resume: bool = False) -> None:
    """Run or resume the tournament in this process."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FINRL_POD_DATA", str(folder / "store"))
        run_tournament(load(folder / "tiny.toml"), out, resume=resume, device="cpu")
    torch.set_num_threads(threads)


def start_process(folder: Path, out: Path) -> subprocess.Popen[str]:
    """Start or resume the run in a subprocess."""
    resume = ["--resume"] if (out / "config.json").exists() else []
    return start(
        folder / "store", "tournament", folder / "tiny.toml", "--out", out, "--device", "cpu", *resume, "--json"
    )


def run_to_end(folder: Path, out: Path) -> tuple[int, str, str]:
    """Resume the run in a subprocess and wait for its end."""
    return call(
        folder / "store", "tournament", folder / "tiny.toml", "--out", out, "--device", "cpu", "--resume", "--json"
    )


def last_generation(out: Path) -> int:
    """Number of the last finished generation; -1 if there is none."""
    file = out / "state.json"
    return int(json.loads(file.read_text())["generation"]) if file.exists() else -1


def wait_until(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the run is too slow"
        time.sleep(0.005)


def results_without_timings(out: Path) -> tuple[Any, Any]:
    """State and report of a run, without timings."""
    state, report = (json.loads((out / name).read_text()) for name in ("state.json", "report.json"))
    for name in ("seconds", "scoring_seconds"):
        state.pop(name)
    timing = report["timing"]
    parts = sum(seconds for name, seconds in timing.items() if name.endswith("_seconds"))
    assert parts == pytest.approx(2 * timing["total_seconds"])
    report["timing"] = timing["samples"]
    return state, report


def test_run_killed_after_every_generation_equals_an_uninterrupted_one(folder: Path, uninterrupted: Path) -> None:
    out = folder / "killed"
    process = start_process(folder, out)  # killed before anything is written
    process.kill()
    process.communicate()
    reached = []
    while (reached or [-1])[-1] < GENERATIONS - 2:
        before = last_generation(out)
        process = start_process(folder, out)
        wait_until(process, lambda before=before: last_generation(out) > before)  # type: ignore[misc]
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not (out / "report.json").exists()
        reached.append(last_generation(out))
    assert reached == sorted(set(reached))
    code, _, err = run_to_end(folder, out)
    assert code == 0
    assert all(line.startswith("note: ") for line in err.splitlines())
    assert results_without_timings(out) == results_without_timings(uninterrupted)
    for file in (uninterrupted / "snapshots").iterdir():
        assert (out / "snapshots" / file.name).read_bytes() == file.read_bytes(), file.name


def test_ctrl_c_prints_one_line_and_the_run_can_be_resumed(folder: Path, uninterrupted: Path) -> None:
    out = folder / "interrupted"
    process = start_process(folder, out)
    wait_until(process, lambda: last_generation(out) >= 0)
    process.send_signal(signal.SIGINT)
    out_text, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 130, err
    assert out_text == ""
    message = f"interrupted; finished generations are kept in {out}. Go on with the same command and --resume --out "
    assert err == f"finrl-pod: {message}{out}\n"
    assert last_generation(out) < GENERATIONS - 1
    run_in_process(folder, out, resume=True)
    assert results_without_timings(out) == results_without_timings(uninterrupted)
