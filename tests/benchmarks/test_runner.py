"""The bench command: output, input errors and required modules."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import runner
from benchmarks.harness.rows import Row, as_json, as_table, document, median_row
from benchmarks.learning.learn import BENCHMARKS
from benchmarks.runner import main
from benchmarks.speed.speed_env import SpeedSettings, make_speed_env

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SMALL = ["--envs", "64", "--assets", "3", "--features", "2", "--days", "40", "--runs", "2", "--device", "cpu"]
PPO = [*SMALL, "--horizon", "4", "--minibatch", "64", "--epochs", "1", "--hidden", "8,8"]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["env", *SMALL, "--observation", "flat"], "env_steps"),
        (["env", *SMALL, "--order", "sequential"], "env_steps"),
        (["env", *SMALL, "--kind", "portfolio", "--observation", "table"], "env_steps"),
        (["env", *SMALL, "--kind", "portfolio", "--mandate", "equal_weight"], "env_steps"),
        (["ppo", *PPO], "ppo_samples"),
        (["ppo", *PPO, "--policy", "equivariant", "--kind", "portfolio"], "ppo_samples"),
    ],
)
def test_json_is_a_single_object_with_rows(arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--json"]) == 0
    printed, progress = capsys.readouterr()
    result = json.loads(printed)
    assert set(result) == {"rows", "machine"}
    (row,) = result["rows"]
    assert set(row) == {"name", "value", "low", "high", "unit", "config"}
    assert row["name"] == name
    assert 0 < row["low"] <= row["value"] <= row["high"]
    assert row["config"]["assets"] == 3
    assert {"cores", "threads", "versions", "date", "device"} <= set(result["machine"])
    assert "run 2 of 2" in progress


def test_table_output_and_json_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "env.json"
    assert main(["env", *SMALL, "--out", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "value", "low", "high", "unit"]
    assert lines[1].startswith("env_steps ")
    assert json.loads(file.read_text())["rows"][0]["name"] == "env_steps"
    assert [path.name for path in file.parent.iterdir()] == ["env.json"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "required"),
        (["speed"], "invalid choice: 'speed'"),
        (["env", "--envs", "two"], "invalid int value: 'two'"),
        (["env", "--envs", "0"], "--envs must be at least 1, got 0"),
        (["env", "--mandate", "equal_weight"], 'environment.kind "stock_trading" trades numbers of shares'),
        (["env", "--days", "2"], "--days at least 3"),
        (["ppo", "--minibatch", "1000"], "--minibatch must divide envs x horizon = 16384"),
        (["env", "--matmul-precision", "tf32"], "unrecognized arguments: --matmul-precision tf32"),
        (["population", "--members", "3"], "--members must divide --envs 1024, got 3"),
        (["ppo", "--hidden", "64x64"], "widths must be numbers such as 64,64, got '64x64'"),
        (["ppo", "--policy", "tree"], "invalid choice: 'tree'"),
        (["env", "--threads", "-1"], "--threads must be 0 or more, got -1"),
        (["learn", "--only", "unknown_name"], "invalid choice: 'unknown_name'"),
        (["learn", "--seeds", "0"], "--seeds must be at least 1, got 0"),
    ],
)
def test_invalid_arguments_print_one_line(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    printed, error = capsys.readouterr()
    assert printed == ""
    assert expected in error
    assert error.count("\n") == 1


def test_unwritable_file_is_refused_before_the_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("file")
    assert main(["env", *SMALL, "--out", str(tmp_path / "file" / "env.json")]) == 2
    assert main(["env", *SMALL, "--out", str(tmp_path)]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 2
    assert "warm-up" not in errors
    assert (tmp_path / "file").read_text() == "file"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_missing_device_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", *SMALL[:-1], "cuda"]) == 2
    assert "use --device cpu" in capsys.readouterr().err


def test_learn_runs_the_selected_benchmarks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[str, int]] = []

    def measure(name: str, _: Any, seeds: int, device: torch.device) -> Row:
        calls.append((name, seeds))
        return Row(name, 0.5, 0.25, 0.75, "share", {})

    benchmarks = {name: (measure, recipe, seeds) for name, (_, recipe, seeds) in BENCHMARKS.items()}
    monkeypatch.setattr("benchmarks.learning.learn.BENCHMARKS", benchmarks)
    monkeypatch.setattr("benchmarks.learning.learn.noise_row", measure)
    assert main(["learn", "--only", "noise_ppo", "--only", "leaked_ppo", "--seeds", "7", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["leaked_ppo", "noise_ppo"]
    assert calls == [("leaked_ppo", 7), ("noise_ppo", 7)]
    assert main(["learn"]) == 0
    assert len(calls) == 3 + len(BENCHMARKS)


@pytest.mark.parametrize("name", runner.BENCHMARKS)
def test_every_benchmark_has_flags(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


def test_population_is_compared_with_a_single_member(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--envs", "16", "--members", "4", "--group", "2", "--horizon", "4", "--minibatch", "32", "--days", "40"]
    small = ["--assets", "3", "--features", "2", "--hidden", "8", "--runs", "2", "--device", "cpu", "--json"]
    assert main(["population", *sizes, *small]) == 0
    population, single, ratio = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in (population, single)] == ["population_samples", "population_samples_alone"]
    assert (population["config"]["members"], single["config"]["members"]) == (4, 1)
    assert population["config"]["samples_a_run"] == single["config"]["samples_a_run"]
    assert ratio["name"] == "population_ratio"
    assert ratio["low"] <= ratio["value"] <= ratio["high"]


def test_rows_are_medians_with_their_range() -> None:
    row = median_row("x", [3.0, 1.0, 2.0, 10.0], "steps/s", {"envs": 4})
    assert (row.value, row.low, row.high) == (2.5, 1.0, 10.0)
    assert json.loads(as_json(document([row], {})))["rows"][0]["config"]["envs"] == 4
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_json({"x": float("nan")})


def test_table_is_aligned() -> None:
    rows = [Row("short", 1234567.0, 0.5, 2e6, "steps/s", {}), Row("a_longer_name", 0.123456, -1.0, 1.0, "share", {})]
    lines = as_table(rows).splitlines()
    assert "1,234,567" in lines[1]
    assert "0.123 " in lines[2]
    assert len({line.index(unit) for line, unit in zip(lines, ("unit", "steps/s", "share"), strict=True)}) == 1


def test_sequential_order_uses_finrl_rules() -> None:
    env = make_speed_env(SpeedSettings(envs=8, assets=2, features=1, days=30, order="sequential"), torch.device("cpu"))
    assert env.config.whole_shares
    assert env.config.fill == env.market.fill_rule == "same_close"
    assert env.accounts == 8
    plain = make_speed_env(SpeedSettings(envs=64, assets=2, features=1, days=30), torch.device("cpu"))
    assert (plain.groups, plain.accounts, plain.config.fill) == (2, 32, "next")
    assert torch.equal(plain.market.fill[:-1], plain.market.close[1:])


def test_speed_and_planted_signal_need_only_torch_numpy_and_pandas() -> None:
    code = f"""
    import sys
    class ImportBlocker:
        allowed = {{"torch", "numpy", "pandas"}}
        refused = {{"skfolio", "scipy", "arch", "pyarrow", "rich", "typer", "pydantic", "safetensors", "gymnasium",
                    "tensorboard", "talib", "plotly", "psutil", "empyrical", "exchange_calendars", "sklearn"}}
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in self.refused:
                raise ModuleNotFoundError(name)
    sys.meta_path.insert(0, ImportBlocker())
    import torch
    from benchmarks.runner import main
    from benchmarks.learning.planted import RECIPE, planted_market, attained_fraction
    from dataclasses import replace
    assert main(["env", *{SMALL!r}]) == 0
    assert main(["ppo", *{PPO!r}]) == 0
    market, train_last = planted_market(0, bars=300, assets=3)
    attained_fraction(market, train_last, replace(RECIPE, samples=1), 0, torch.device("cpu"), "planted")
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "ppo_samples" in done.stdout


def test_bench_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "ppo", "--minibatch", "7"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("benchmarks: --minibatch must divide")


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks" / "README.md"])
def test_documented_benchmarks_exist(page: Path) -> None:
    names = re.findall(r"python -m benchmarks ([a-z][\w-]*)", page.read_text(encoding="utf-8"))
    assert set(names) <= set(runner.BENCHMARKS)
