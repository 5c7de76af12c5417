"""What people get wrong: one sentence on standard error, exit code 2, nothing on standard output, nothing lost."""

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
from finrl_pod_app.services.presets import config_text

from finrl_pod.data.store import Store
from finrl_pod.settings.run import RunConfig
from tests.app.command import call
from tests.app.small_run import fill_store, small_config, small_panel
from tests.data.panels import panel

pytestmark = pytest.mark.slow

Say = Callable[..., str]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    fill_store(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def say(store: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run the command line; returns its one sentence."""

    def fails(*arguments: str | Path) -> str:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        assert code == 2, shown.err
        assert shown.out == ""
        # Without --json the stages that were reached are told before it.
        *stages, sentence = shown.err.splitlines()
        assert all(re.match("reading|training|validating", stage) for stage in stages), shown.err
        assert sentence.startswith("finrl-pod: ")
        assert not stages or "--json" not in arguments
        return sentence.removeprefix("finrl-pod: ")

    return fails


def write(config: RunConfig, *changes: tuple[str, str]) -> Path:
    """A config file with some of its text changed."""
    text = config_text(config)
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    file = Path("mine.toml")
    file.write_text(text)
    return file


CONFIG_FAULTS: dict[str, tuple[tuple[str, str], str]] = {
    "a ticker": (("symbols = []", 'symbols = ["S0", "S9"]'), "panel 'made' has no ticker S9: it has S0, S1, S2, S3"),
    "a panel": (('name = "made"', 'name = "mode"'), "there is no panel 'mode'"),
    "a feature": (('"return_5"', '"retrun_5"'), "unknown feature 'retrun_5'; did you mean return_5"),
    "a feature's column": (('"return_5"', '"cci_30"'), "feature 'cci_30' needs high, low, which panel 'made' lacks"),
    "a feature twice": (('"return_5"', '"return_1"'), "feature 'return_1' is listed twice"),
    "an algorithm": (
        ('algorithm = "ppo"', 'algorithm = "ppp"'),
        "agent.algorithm: there is no algorithm 'ppp'",
    ),
    "a list of algorithms": (('algorithm = "ppo"', 'algorithm = ["ppo"]'), "there is no algorithm ['ppo']"),
    "threads beyond all sense": (
        ("threads = ", "threads = 999999999"),
        "threads is out of its range, got 9999999991: it must be 0 to 1,024",
    ),
    "a number beyond all sense": (("pods = 3", f"pods = {'9' * 5000}"), "is not TOML"),
    "a policy": (
        ('policy = "equivariant"', 'policy = "lstm"'),
        "agent.policy: Input should be 'equivariant', 'linear' or 'mlp'",
    ),
    "a key": (("pods = 3", "podz = 3"), "unknown key tournament.podz; did you mean pods?"),
    "a section": (("[agent]", "[agents]"), "unknown key agents; did you mean agent?"),
    "a key at the top": (("seed = 5", "sead = 5"), "unknown key sead; did you mean seed?"),
    "no TOML": (("pods = 3", "pods = "), "is not TOML"),
    "a word for a number": (("cost_bps = 10.0", 'cost_bps = "cheap"'), "environment.cost_bps: Input should be a valid"),
    "a fraction of a pod": (("pods = 3", "pods = 2.5"), "tournament.pods: Input should be a valid integer"),
    "no number": (("cash = 1_000_000.0", "cash = nan"), "environment.cash: Input should be a finite number"),
    "without end": (("cash = 1_000_000.0", "cash = inf"), "environment.cash: Input should be a finite number"),
    "a negative cost": (("cost_bps = 10.0", "cost_bps = -1.0"), "environment.cost_bps is out of its range, got -1.0"),
    "no cash": (("cash = 1_000_000.0", "cash = 0.0"), "environment.cash is out of its range, got 0.0"),
    "a window of none": (("window = 40", "window = 0"), "environment.window is out of its range, got 0"),
    "no environments": (("envs = 16", "envs = 0"), "environment.envs is out of its range, got 0"),
    "odd groups": (
        ("group = 4", "group = 5"),
        "environment.envs must be a multiple of environment.group, got 16 and 5",
    ),
    "no pods": (("pods = 3", "pods = 0"), "tournament.pods is out of its range, got 0"),
    "too many champions": (("champion = 2", "champion = 5"), "tournament.champion is out of its range, got 5"),
    "shares above one": (
        ("exploit_fraction = 0.5", "exploit_fraction = 0.9"),
        "may add up to 1 at most, got 0.9 and 0.34",
    ),
    "minibatches": (("minibatches = 2", "minibatches = 7"), "agent.minibatches must divide horizon x groups = 8 x 4"),
    "no features": (
        ('names = ["return_1", "return_5"]', "names = []"),
        "features.names is empty; name at least one feature",
    ),
    "no minibatches": (("minibatches = 2", "minibatches = 0"), "agent.minibatches is out of its range, got 0"),
    "a long horizon": (("horizon = 8", "horizon = 41"), "agent.horizon must be at most the episode's window of 40"),
    "no hidden layer": (("hidden = [4, 4]", "hidden = []"), "agent.hidden is out of its range, got ()"),
    "a negative seed": (("seed = 5", "seed = -5"), "seed is out of its range, got -5: it must be 0 to"),
    "negative threads": (("threads = 1", "threads = -1"), "threads is out of its range, got -1: it must be 0 to 1,024"),
    "a negative embargo": (("embargo = 2", "embargo = -2"), "splits.embargo must be 0 bars or more, got -2"),
    "dates before the data": (
        ('train = ["2020-01-01"', 'train = ["1990-01-01"'),
        "lies outside the data, which covers",
    ),
    "dates after the data": (('"2021-10-31"]', '"2031-10-31"]'), "lies outside the data, which covers"),
    "overlapping splits": (('validation = ["2021-04-01"', 'validation = ["2021-03-01"'), "splits must not overlap"),
    "splits out of order": (('test = ["2021-07-01", "2021-10-31"]', 'test = ["2020-07-01", "2020-10-31"]'), "overlap"),
    "a split backwards": (('test = ["2021-07-01", "2021-10-31"]', 'test = ["2021-10-31", "2021-07-01"]'), "swap"),
    "one date": (('test = ["2021-07-01", "2021-10-31"]', 'test = ["2021-07-01"]'), "splits.test"),
    "what is no date": (('"2021-10-31"]', '"2021-02-31"]'), "the end of test must be a date such as 2020-01-31"),
    "a short test": (('test = ["2021-07-01", "2021-10-31"]', 'test = ["2021-07-01", "2021-07-10"]'), "has 10 bars"),
    "a short validation": (('"2021-06-30"]', '"2021-04-12"]'), "validation has 10 bars, the verdict needs at least 33"),
    "a short training": (('"2021-03-31"]', '"2020-01-09"]'), "an environment needs at least one decision bar"),
    "a training too short to fit": (('"2021-03-31"]', '"2020-01-05"]'), "is undefined on all training bars"),
}


@pytest.mark.parametrize("fault", CONFIG_FAULTS)
def test_invalid_configs_are_refused(fault: str, say: Say) -> None:
    change, words = CONFIG_FAULTS[fault]
    sentence = say("tournament", write(small_config(), change), "--out", "run", "--device", "cpu", "--json")
    assert words in sentence
    assert not Path("run").exists()


def test_an_empty_test_period_is_refused(say: Say) -> None:
    # A panel with a hole of four months, as a source that lost its summer.
    made = small_panel("holes")
    kept = (made.times < made.times[546]) | (made.times > made.times[670])
    holes = dataclasses.replace(panel(made.close[kept], name="holes"), times=made.times[kept])
    Store().save(holes)
    config = write(small_config(), ('name = "made"', 'name = "holes"'))
    assert "split test, 2021-07-01 to 2021-10-31, has no bars" in say("tournament", config, "--out", "run")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tournament", "absent.toml"), "cannot read config absent.toml: No such file"),
        (("tournament", "."), "cannot read config .: Is a directory"),
        (("tournament", "good.toml", "--device", "tpu"), "'tpu' is not one of 'auto', 'cpu', 'cuda'"),
        (("tournament", "good.toml", "--seed", "-1"), "--seed"),
        (("tournament", "good.toml", "--resume"), "--resume needs --out DIR"),
        (("tournament", "good.toml", "--resume", "--out", "nothing"), "no run to resume in nothing; start it without"),
        (("train", "good.toml", "--resume", "--out", "nothing"), "no run to resume in nothing"),
        (("tournament", "good.toml", "--out", "good.toml/run"), "cannot write good.toml/run: Not a directory"),
        (("demo", "--quick", "--out", "good.toml/run"), "cannot write good.toml/run: Not a directory"),
        (("backtest", "nothing"), "nothing holds no run with a finished generation"),
        (("backtest", "--strategy", "luck"), "unknown strategy 'luck'"),
        (
            ("backtest", "--strategy", "my.py"),
            "is a file: add the name of its class, as my.py:MyStrategy",
        ),
        (("backtest", "--strategy", "index", "--data", "other"), "has no index"),
        (("backtest", "--strategy", "equal_weight", "--data", "none"), "there is no panel 'none'"),
        (("backtest", "--strategy", "equal_weight", "--data", "../made"), "a panel's name has letters"),
        (("backtest", "--strategy", "equal_weight", "--start", "1950-01-01"), "exceeds the data"),
        (("backtest", "--strategy", "equal_weight", "--start", "yesterday"), "the start must be a date such as"),
        (("backtest", "--strategy", "equal_weight", "--cost-bps", "-3"), "--cost-bps"),
        (("backtest", "--strategy", "equal_weight", "--cash", "0"), "--cash must be above zero, got 0"),
        (
            ("backtest", "--strategy", "index", "--data", "made", "--out", "good.toml/x"),
            "cannot write good.toml/x: Not a directory",
        ),
        (("data", "import", "absent.csv", "--name", "x"), "absent.csv"),
        (("data", "show", "absent"), "there is no panel 'absent'"),
    ],
)
def test_invalid_arguments_are_refused(arguments: tuple[str, ...], words: str, say: Say) -> None:
    Path("good.toml").write_text(config_text(small_config()))
    before = Path("good.toml").read_bytes()
    assert words in say(*arguments)
    assert Path("good.toml").read_bytes() == before
    assert not Path("nothing").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_missing_device_is_refused(say: Say) -> None:
    sentence = say("tournament", write(small_config()), "--out", "run", "--device", "cuda")
    assert "no CUDA device is available to torch" in sentence
    assert not Path("run").exists()


CSV = "time,symbol,close\n" + "".join(f"2024-01-{day:02d},{s},{day}.5\n" for day in range(2, 9) for s in ("AA", "BB"))
CSV_FAULTS = {
    "a NaN": ("04,AA,4.5", "04,AA,nan", "AA has no close on 2024-01-04, a gap"),
    "an empty cell": ("04,AA,4.5", "04,AA,", "AA has no close on 2024-01-04, a gap"),
    "a word": ("04,AA,4.5", "04,AA,high", "high"),
    "a negative price": ("04,AA,4.5", "04,AA,-4.5", "-4.5"),
    "no price at all": ("04,AA,4.5", "04,AA,0", "AA"),
    "no date": ("2024-01-04,AA", "2024-01-99,AA", "2024-01-99"),
    "a bar twice": ("2024-01-04,AA", "2024-01-03,AA", "2024-01-03"),
    "an unknown column": ("symbol,close", "symbol,klose", "klose"),
}


@pytest.mark.parametrize("fault", CSV_FAULTS)
def test_an_invalid_csv_stores_nothing(fault: str, say: Say, store: Path) -> None:
    old, new, words = CSV_FAULTS[fault]
    assert CSV.count(old) == 1
    Path("bad.csv").write_text(CSV.replace(old, new))
    assert words in say("data", "import", "bad.csv", "--name", "bad")
    assert not (store / "bad").exists()


def test_the_corrected_csv_is_stored(store: Path) -> None:
    Path("good.csv").write_text(CSV)
    assert run(["data", "import", "good.csv", "--name", "good"]) == 0
    assert (store / "good" / "manifest.json").exists()


def test_a_truncated_parquet_in_the_store(say: Say, store: Path) -> None:
    (file,) = (store / "made").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-100])
    config = write(small_config())
    assert "was truncated or altered" in say("tournament", config, "--out", "run")
    assert "fetch or import 'made' again" in say("backtest", "--strategy", "index", "--data", "made")
    assert not Path("run").exists()


def test_a_damaged_manifest_in_the_store(say: Say, store: Path) -> None:
    (store / "made" / "manifest.json").write_text("{")
    assert "manifest.json" in say("tournament", write(small_config()), "--out", "run")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


@pytest.mark.slow
def test_damaged_or_foreign_runs_are_refused(say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    """One run, spoilt in turn in every way; what is on disk stays as it is."""
    good = write(small_config(pods=2, generations=1, champion=1, reinit_fraction=0.0)).rename("good.toml")
    resume = ("tournament", good, "--out", "run", "--device", "cpu", "--resume")
    assert run(["tournament", str(good), "--out", "run", "--device", "cpu"]) == 0
    folder = Path("run")
    best = json.loads((folder / "state.json").read_text())["leaderboard"][0]["id"]
    weights = folder / "snapshots" / f"{best}.safetensors"
    facts = folder / "snapshots" / f"{best}.json"

    assert "run already holds a run; add --resume" in say("tournament", good, "--out", "run", "--device", "cpu")
    other = write(small_config(pods=3, generations=1, champion=1, reinit_fraction=0.0))
    assert "was made with another config or seed" in say("tournament", other, "--out", "run", "--resume")
    assert "was made with another config or seed" in say(*resume, "--seed", "9")

    damages: list[tuple[Path, Callable[[Path], Any], str]] = [
        (weights, cut, "is damaged: its hash differs from the saved one"),
        (weights, Path.unlink, "cannot read snapshot"),
        (facts, cut, "is damaged: it is not JSON"),
        (facts, Path.unlink, "is missing"),
        (folder / "state.json", cut, "is damaged"),
        (folder / "state.json", lambda file: file.write_text('{"generation": 0}'), "is damaged at leaderboard"),
        (
            folder / "state.json",
            lambda file: file.write_text(json.dumps({**json.loads(file.read_text()), "leaderboard": 5})),
            "is damaged at leaderboard",
        ),
        (folder / "config.json", cut, "is damaged"),
        (folder / "config.json", lambda file: file.write_text("{}"), "is damaged: config is missing"),
    ]
    for file, spoil, words in damages:
        whole = file.read_bytes()
        spoil(file)
        spoilt = sorted((f, f.read_bytes()) for f in folder.rglob("*") if f.is_file())
        assert words in say("backtest", folder), words
        assert words in say(*resume), words
        assert sorted((f, f.read_bytes()) for f in folder.rglob("*") if f.is_file()) == spoilt
        file.write_bytes(whole)
    (folder / "state.json").write_text(
        (folder / "state.json").read_text().replace('"hyperparameters"', '"superparameters"')
    )
    assert "leaderboard has an invalid row" in say("backtest", folder)


@pytest.mark.slow
def test_the_real_process_prints_the_same_message(store: Path) -> None:
    Path("good.toml").write_text(config_text(small_config()))
    code, out, err = call(store, "tournament", "good.toml", "--resume", "--out", "nothing", "--json")
    assert (code, out) == (2, "")
    assert err == "finrl-pod: there is no run to resume in nothing; start it without --resume\n"
