"""Input errors: one sentence on standard error, exit code 2, nothing on standard output, no files changed."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from finrl_pod_app.cli.main import run
from finrl_pod_app.setup.presets import config_text

from finrl_pod.data.store import Store
from finrl_pod.settings.run import RunConfig
from tests.app.command import call
from tests.app.small_run import fill_store, small_config, small_panel
from tests.data.panels import panel

pytestmark = pytest.mark.slow

ErrorOf = Callable[..., str]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    fill_store(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def error_of(store: Path, capsys: pytest.CaptureFixture[str]) -> ErrorOf:
    """Run a command that must fail; return its error message."""

    def run_failing(*arguments: str | Path) -> str:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        output = capsys.readouterr()
        assert code == 2, output.err
        assert output.out == ""
        # Without --json, the stages reached are printed before it.
        *stages, message = output.err.splitlines()
        assert all(re.match("reading|training|validating", stage) for stage in stages), output.err
        assert message.startswith("finrl-pod: ")
        assert not stages or "--json" not in arguments
        return message.removeprefix("finrl-pod: ")

    return run_failing


def write(config: RunConfig, *changes: tuple[str, str]) -> Path:
    """Write a config file with replaced text."""
    text = config_text(config)
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    file = Path("config.toml")
    file.write_text(text)
    return file


CONFIG_FAULTS: dict[str, tuple[tuple[str, str], str]] = {
    "unknown ticker": (
        ("symbols = []", 'symbols = ["S0", "S9"]'),
        "panel 'main' has no ticker S9: it has S0, S1, S2, S3",
    ),
    "unknown panel": (('name = "main"', 'name = "mode"'), "there is no panel 'mode'"),
    "unknown feature": (('"return_5"', '"retrun_5"'), "unknown feature 'retrun_5'; did you mean return_5"),
    "missing column of a feature": (
        ('"return_5"', '"cci_30"'),
        "feature 'cci_30' needs high, low, which panel 'main' lacks",
    ),
    "duplicate feature": (('"return_5"', '"return_1"'), "feature 'return_1' is listed twice"),
    "an algorithm": (
        ('algorithm = "ppo"', 'algorithm = "ppp"'),
        "agent.algorithm: there is no algorithm 'ppp'",
    ),
    "list of algorithms": (('algorithm = "ppo"', 'algorithm = ["ppo"]'), "there is no algorithm ['ppo']"),
    "too many threads": (
        ("threads = ", "threads = 999999999"),
        "threads is out of its range, got 9999999991: it must be 0 to 1,024",
    ),
    "huge number": (("pods = 3", f"pods = {'9' * 5000}"), "is not TOML"),
    "unknown policy": (
        ('policy = "equivariant"', 'policy = "lstm"'),
        "agent.policy must be one of equivariant, linear, mlp, got 'lstm'",
    ),
    "unknown key": (("pods = 3", "podz = 3"), "unknown key tournament.podz; did you mean pods?"),
    "unknown section": (("[agent]", "[agents]"), "unknown key agents; did you mean agent?"),
    "unknown top-level key": (("seed = 5", "sead = 5"), "unknown key sead; did you mean seed?"),
    "invalid TOML": (("pods = 3", "pods = "), "config.toml is not TOML: Invalid value (at line"),
    "string instead of a number": (
        ("cost_bps = 10.0", 'cost_bps = "cheap"'),
        "environment.cost_bps must be a number, got",
    ),
    "float instead of an integer": (("pods = 3", "pods = 2.5"), "tournament.pods must be a whole number, got 2.5"),
    "boolean instead of an integer": (("pods = 3", "pods = true"), "tournament.pods must be a whole number, got true"),
    "number instead of a boolean": (("short = false", "short = 0"), "environment.short must be true or false, got 0"),
    "config of the daemon": (
        ("seed = 5", 'strategy = "equal_weight"'),
        "is the config of the paper-trading daemon: it has strategy. Run it with finrl-pod paper run",
    ),
    "NaN": (("cash = 1_000_000.0", "cash = nan"), "environment.cash must be a finite number"),
    "infinity": (("cash = 1_000_000.0", "cash = inf"), "environment.cash must be a finite number"),
    "negative cost": (("cost_bps = 10.0", "cost_bps = -1.0"), "environment.cost_bps is out of its range, got -1.0"),
    "unknown reward": (
        ('reward = "log_return"', 'reward = "profit"'),
        "environment.reward is out of its range, got 'profit': it must be one of log_return, active_return",
    ),
    "missing file of a reward": (
        ('reward = "log_return"', 'reward = "absent.py:mine"'),
        "there is no file absent.py for the reward absent.py:mine",
    ),
    "zero cash": (("cash = 1_000_000.0", "cash = 0.0"), "environment.cash is out of its range, got 0.0"),
    "zero window": (("window = 40", "window = 0"), "environment.window is out of its range, got 0"),
    "zero environments": (("envs = 16", "envs = 0"), "environment.envs is out of its range, got 0"),
    "odd groups": (
        ("group = 4", "group = 5"),
        "environment.envs must be a multiple of environment.group, got 16 and 5",
    ),
    "zero pods": (("pods = 3", "pods = 0"), "tournament.pods is out of its range, got 0"),
    "too many champions": (("champion = 2", "champion = 5"), "tournament.champion is out of its range, got 5"),
    "fractions above one": (
        ("exploit_fraction = 0.5", "exploit_fraction = 0.9"),
        "may add up to 1 at most, got 0.9 and 0.34",
    ),
    "minibatches": (("minibatches = 2", "minibatches = 7"), "agent.minibatches must divide horizon x groups = 8 x 4"),
    "no features": (
        ('names = ["return_1", "return_5"]', "names = []"),
        "features.names is empty; name at least one feature",
    ),
    "no minibatches": (("minibatches = 2", "minibatches = 0"), "agent.minibatches is out of its range, got 0"),
    "too long horizon": (("horizon = 8", "horizon = 41"), "agent.horizon must be at most the window of 40"),
    "no hidden layers": (("hidden = [4, 4]", "hidden = []"), "agent.hidden is out of its range, got ()"),
    "negative seed": (("seed = 5", "seed = -5"), "seed is out of its range, got -5: it must be 0 to"),
    "negative threads": (("threads = 1", "threads = -1"), "threads is out of its range, got -1: it must be 0 to 1,024"),
    "negative embargo": (("embargo = 2", "embargo = -2"), "splits.embargo must be 0 bars or more, got -2"),
    "dates before the data": (
        ('train = ["2020-01-01"', 'train = ["1990-01-01"'),
        "lies outside the data, which covers",
    ),
    "dates after the data": (('"2021-10-31"]', '"2031-10-31"]'), "lies outside the data, which covers"),
    "overlapping splits": (('validation = ["2021-04-01"', 'validation = ["2021-03-01"'), "splits must not overlap"),
    "splits out of order": (('test = ["2021-07-01", "2021-10-31"]', 'test = ["2020-07-01", "2020-10-31"]'), "overlap"),
    "reversed split": (('test = ["2021-07-01", "2021-10-31"]', 'test = ["2021-10-31", "2021-07-01"]'), "swap"),
    "missing end date": (('test = ["2021-07-01", "2021-10-31"]', 'test = ["2021-07-01"]'), "splits.test"),
    "invalid date": (('"2021-10-31"]', '"2021-02-31"]'), "the end of test must be a date such as 2020-01-31"),
    "too short test": (('test = ["2021-07-01", "2021-10-31"]', 'test = ["2021-07-01", "2021-07-10"]'), "has 10 bars"),
    "too short validation": (
        ('"2021-06-30"]', '"2021-04-12"]'),
        "validation has 10 bars, the verdict needs at least 33",
    ),
    "too short training": (('"2021-03-31"]', '"2020-01-09"]'), "an environment needs at least one decision bar"),
    "training too short for features": (('"2021-03-31"]', '"2020-01-05"]'), "is undefined on all training bars"),
}


@pytest.mark.parametrize("fault", CONFIG_FAULTS)
def test_invalid_configs_are_refused(fault: str, error_of: ErrorOf) -> None:
    change, expected = CONFIG_FAULTS[fault]
    message = error_of("tournament", write(small_config(), change), "--out", "run", "--device", "cpu", "--json")
    assert expected in message
    assert not Path("run").exists()


def test_empty_test_period_is_refused(error_of: ErrorOf) -> None:
    # A panel with a gap of four months, which covers the test period.
    complete = small_panel("gap")
    kept = (complete.times < complete.times[546]) | (complete.times > complete.times[670])
    Store().save(dataclasses.replace(panel(complete.close[kept], name="gap"), times=complete.times[kept]))
    config = write(small_config(), ('name = "main"', 'name = "gap"'))
    assert "split test, 2021-07-01 to 2021-10-31, has no bars" in error_of("tournament", config, "--out", "run")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("tournament", "absent.toml"), "there is no config absent.toml"),
        (("tournament", "."), "cannot read config .: Is a directory"),
        (("tournament", "good.toml", "--device", "tpu"), "--device must be one of auto, cpu, cuda, got tpu"),
        (("tournament", "good.toml", "--seed", "-1"), "--seed"),
        (("tournament", "good.toml", "--resume"), "--resume needs --out DIR"),
        (("tournament", "good.toml", "--resume", "--out", "missing"), "no run to resume in missing; start it without"),
        (("train", "good.toml", "--resume", "--out", "missing"), "no run to resume in missing"),
        (("tournament", "good.toml", "--out", "good.toml/run"), "cannot write good.toml/run: Not a directory"),
        (("demo", "--quick", "--out", "good.toml/run"), "cannot write good.toml/run: Not a directory"),
        (("backtest", "missing"), "there is no folder missing"),
        (("backtest", "--strategy", "unknown_name"), "unknown strategy 'unknown_name'"),
        (
            ("backtest", "--strategy", "my.py"),
            "is a file: add the name of its class, as my.py:MyStrategy",
        ),
        (("backtest", "--strategy", "index", "--data", "other"), "has no index"),
        (("backtest", "--strategy", "equal_weight", "--data", "none"), "there is no panel 'none'"),
        (("backtest", "--strategy", "equal_weight", "--data", "../main"), "a panel's name has letters"),
        (("backtest", "--strategy", "equal_weight", "--start", "1950-01-01"), "exceeds the data"),
        (("backtest", "--strategy", "equal_weight", "--start", "yesterday"), "the start must be a date such as"),
        (("backtest", "--strategy", "equal_weight", "--cost-bps", "-3"), "--cost-bps"),
        (("backtest", "--strategy", "equal_weight", "--cash", "0"), "cash must be above zero, got 0"),
        (
            ("backtest", "--strategy", "index", "--data", "main", "--out", "good.toml/x"),
            "cannot write good.toml/x: Not a directory",
        ),
        (("data", "import", "absent.csv", "--name", "x"), "absent.csv"),
        (("data", "show", "absent"), "there is no panel 'absent'"),
    ],
)
def test_invalid_arguments_are_refused(arguments: tuple[str, ...], expected: str, error_of: ErrorOf) -> None:
    Path("good.toml").write_text(config_text(small_config()))
    before = Path("good.toml").read_bytes()
    assert expected in error_of(*arguments)
    assert Path("good.toml").read_bytes() == before
    assert not Path("missing").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_missing_device_is_refused(error_of: ErrorOf) -> None:
    message = error_of("tournament", write(small_config()), "--out", "run", "--device", "cuda")
    assert "no CUDA device is available to torch" in message
    assert not Path("run").exists()


CSV = "time,symbol,close\n" + "".join(f"2024-01-{day:02d},{s},{day}.5\n" for day in range(2, 9) for s in ("AA", "BB"))
CSV_FAULTS = {
    "NaN": ("04,AA,4.5", "04,AA,nan", "AA has no close on 2024-01-04, a gap"),
    "empty cell": ("04,AA,4.5", "04,AA,", "AA has no close on 2024-01-04, a gap"),
    "text instead of a price": ("04,AA,4.5", "04,AA,high", "high"),
    "negative price": ("04,AA,4.5", "04,AA,-4.5", "-4.5"),
    "zero price": ("04,AA,4.5", "04,AA,0", "AA"),
    "invalid date": ("2024-01-04,AA", "2024-01-99,AA", "2024-01-99"),
    "duplicate bar": ("2024-01-04,AA", "2024-01-03,AA", "2024-01-03"),
    "unknown column": ("symbol,close", "symbol,klose", "klose"),
}


@pytest.mark.parametrize("fault", CSV_FAULTS)
def test_invalid_csv_is_not_stored(fault: str, error_of: ErrorOf, store: Path) -> None:
    old, new, expected = CSV_FAULTS[fault]
    assert CSV.count(old) == 1
    Path("bad.csv").write_text(CSV.replace(old, new))
    assert expected in error_of("data", "import", "bad.csv", "--name", "bad")
    assert not (store / "bad").exists()


def test_corrected_csv_is_stored(store: Path) -> None:
    Path("good.csv").write_text(CSV)
    assert run(["data", "import", "good.csv", "--name", "good"]) == 0
    assert (store / "good" / "manifest.json").exists()


def test_truncated_parquet_is_refused(error_of: ErrorOf, store: Path) -> None:
    (file,) = (store / "main").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-100])
    config = write(small_config())
    assert "was truncated or altered" in error_of("tournament", config, "--out", "run")
    assert "fetch or import 'main' again" in error_of("backtest", "--strategy", "index", "--data", "main")
    assert not Path("run").exists()


def test_damaged_manifest_is_refused(error_of: ErrorOf, store: Path) -> None:
    (store / "main" / "manifest.json").write_text("{")
    assert "manifest.json" in error_of("tournament", write(small_config()), "--out", "run")


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


@pytest.mark.slow
def test_damaged_or_different_runs_are_refused(error_of: ErrorOf, capsys: pytest.CaptureFixture[str]) -> None:
    """Damage each file of a run in turn: the run is refused and no file changes."""
    good = write(small_config(pods=2, generations=1, champion=1, reinit_fraction=0.0)).rename("good.toml")
    resume = ("tournament", good, "--out", "run", "--device", "cpu", "--resume")
    assert run(["tournament", str(good), "--out", "run", "--device", "cpu"]) == 0
    folder = Path("run")
    best = json.loads((folder / "state.json").read_text())["leaderboard"][0]["id"]
    weights = folder / "snapshots" / f"{best}.safetensors"
    description = folder / "snapshots" / f"{best}.json"

    assert "run already holds a run; choose another folder" in error_of(
        "tournament", good, "--out", "run", "--device", "cpu"
    )
    other = write(small_config(pods=3, generations=1, champion=1, reinit_fraction=0.0))
    assert "was made with another config or seed" in error_of("tournament", other, "--out", "run", "--resume")
    assert "another config or seed: seed is 5 in the run and 9 here; resume" in error_of(*resume, "--seed", "9")

    damages: list[tuple[Path, Callable[[Path], Any], str]] = [
        (weights, truncate, "is damaged: its hash differs from the saved one"),
        (weights, Path.unlink, "cannot read snapshot"),
        (description, truncate, "is damaged: it is not JSON"),
        (description, Path.unlink, "is missing"),
        (folder / "state.json", truncate, "is damaged"),
        (folder / "state.json", lambda file: file.write_text('{"generation": 0}'), "is damaged at leaderboard"),
        (
            folder / "state.json",
            lambda file: file.write_text(json.dumps({**json.loads(file.read_text()), "leaderboard": 5})),
            "is damaged at leaderboard",
        ),
        (folder / "config.json", truncate, "is damaged"),
        (folder / "config.json", lambda file: file.write_text("{}"), "config.json is damaged: config"),
    ]
    for file, damage, expected in damages:
        original = file.read_bytes()
        damage(file)
        damaged_files = sorted((f, f.read_bytes()) for f in folder.rglob("*") if f.is_file())
        assert expected in error_of("backtest", folder), expected
        assert expected in error_of(*resume), expected
        assert sorted((f, f.read_bytes()) for f in folder.rglob("*") if f.is_file()) == damaged_files
        file.write_bytes(original)
    (folder / "state.json").write_text(
        (folder / "state.json").read_text().replace('"hyperparameters"', '"superparameters"')
    )
    assert "leaderboard has an invalid row" in error_of("backtest", folder)


@pytest.mark.slow
def test_installed_command_prints_the_same_message(store: Path) -> None:
    Path("good.toml").write_text(config_text(small_config()))
    code, out, err = call(store, "tournament", "good.toml", "--resume", "--out", "missing", "--json")
    assert (code, out) == (2, "")
    assert err == "finrl-pod: there is no run to resume in missing; start it without --resume\n"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return interval.after * float('nan')", "must return finite numbers, got NaN or infinity for 2 of 2 accounts"),
        ("return interval.after.mean()", "must return a tensor of shape (1, 1, 2), one number per account, got ()"),
        ("return interval.profit", "failed: AttributeError"),
    ],
)
def test_failing_user_reward_is_refused(body: str, words: str, error_of: ErrorOf) -> None:
    Path("mine.py").write_text(f"def reward(interval):\n    {body}\n")
    config = write(small_config(), ('reward = "log_return"', 'reward = "mine.py:reward"'))
    message = error_of("tournament", config, "--out", "run")
    assert "the reward mine.py:reward" in message
    assert words in message
    assert not Path("run").exists()
