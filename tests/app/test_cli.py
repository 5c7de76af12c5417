"""The command line: one-line errors, a single JSON object with --json, and an example in every help text."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import finrl_pod_app
import finrl_pod_app.evaluation
import finrl_pod_app.training
import pytest
import typer
from finrl_pod_app.cli import console
from finrl_pod_app.cli.main import app, run
from finrl_pod_app.evaluation.finished_backtest import BacktestTerms
from finrl_pod_app.report.records import RunReport, make_report
from finrl_pod_app.setup.extensions import KINDS, NEW_KINDS
from finrl_pod_app.setup.presets import PRESETS, preset, write_preset

from finrl_pod import __version__
from finrl_pod.data.sources.factory import SOURCES
from finrl_pod.errors import DataError, Interrupted
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.progress import Progress
from tests.app.report_data import synthetic_report, synthetic_results

DOCUMENT: dict[str, Any] = {
    "splits": {"test": ["2019-01-02", "2022-12-28"], "embargo": 5},
    "test": {"strategies": {"equal_weight": {"sharpe": 0.5}, "champion": {"sharpe": 1.234, "annual_return": 0.101}}},
    "verdict": {"promoted": False, "reasons": ["its interval contains zero"], "looks": 1},
}
REPORT = make_report(DOCUMENT)


class FakeServices(types.SimpleNamespace):
    """Fake of `finrl_pod_app.training.tournaments` that records its calls."""

    calls: ClassVar[list[tuple[Any, dict[str, Any]]]]
    failure: BaseException | None = None

    def run_tournament(self, config: RunConfig, out: Path, **options: Any) -> RunReport:
        return self._record((config, out), options)

    def run_backtest(self, target: str | Path, **options: Any) -> RunReport:
        return self._record(target, options)

    def _record(self, what: Any, options: dict[str, Any]) -> RunReport:
        self.calls.append((what, options))
        if self.failure is not None:
            raise self.failure
        if "progress" in options:
            for samples in (0, 500, 1000):
                options["progress"](progress(stage="training", samples=samples))
        return REPORT


def progress(**changes: Any) -> Progress:
    values: dict[str, Any] = {
        "stage": "training",
        "samples": 500,
        "total_samples": 1000,
        "samples_per_second": 29_740.2,
        "best": 1.234,
        "seconds_left": 61.0,
        "detail": "",
    }
    return Progress(**{**values, **changes})


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeServices:
    fake = FakeServices()
    fake.calls = []  # type: ignore[misc]
    monkeypatch.setattr(finrl_pod_app.training, "tournaments", fake, raising=False)
    monkeypatch.setattr(finrl_pod_app.evaluation, "backtests", fake, raising=False)
    monkeypatch.chdir(tmp_path)
    return fake


def commands() -> list[list[str]]:
    """Return every command and subcommand as a list of words."""
    result = []

    def walk(group: Any, words: list[str]) -> None:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                walk(command, [*words, name])
            else:
                result.append([*words, name])

    walk(typer.main.get_command(app), [])
    return result


def test_top_level_commands() -> None:
    top = {words[0] for words in commands()}
    training = {"demo", "tournament", "train", "retrain", "walkforward", "ensemble", "algorithms", "new", "check"}
    environments = {"evaluate", "play", "export"}
    evaluation = {"backtest", "sweep", "orders", "audit", "promote", "trials", "features"}
    operation = {
        "registry",
        "paper",
        "dashboard",
        "data",
        "doctor",
        "init",
    }
    assert top == training | environments | evaluation | operation


@pytest.mark.slow
@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_help_has_an_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--help"]) == 0
    assert f"Example: finrl-pod {' '.join(words)}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "names"),
    [(["init"], tuple(PRESETS)), (["data", "fetch"], SOURCES), (["check"], KINDS), (["new"], NEW_KINDS)],
    ids=["presets", "sources", "kinds", "new kinds"],
)
def test_help_names_every_choice(words: list[str], names: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--help"]) == 0
    assert set(names) <= set(re.findall(r"\w+", capsys.readouterr().out))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"finrl-pod {__version__}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["unknown"], "no such command 'unknown' (see finrl-pod --help)"),
        (["tournament"], "missing argument 'CONFIG.toml' (see finrl-pod tournament --help)"),
        (["demo", "--sped", "3"], "no such option"),
        (["demo", "--seed", "-1"], "--seed must be 0 or more, got -1 (see finrl-pod demo --help)"),
        (["demo", "--seed", "1.5"], "--seed must be a whole number, got 1.5"),
        (
            ["backtest", "--cost-bps", "0,1"],
            "--cost-bps must be a number, got 0,1",
        ),
        (["backtest", "--cost-bps", "x"], "--cost-bps must be a number, got x (see"),
        (["tournament", "a.toml", "--engine", "loc"], "ray, got loc; did you mean local? (see"),
        (["tournament", "a.toml", "--out"], "option '--out' requires an argument (see finrl-pod --help)"),
        (["tournament", "absent.toml"], "there is no config absent.toml"),
        (["tournament", "absent.toml", "--device", "tpu"], "--device must be one of auto, cpu, cuda, got tpu"),
        (["init", "--preset", "huge", "x.toml"], "there is no preset 'huge'"),
        (["backtest"], "a run directory, --strategy NAME and --scores"),
        (["backtest", "runs/a", "--strategy", "index"], "a run directory, --strategy NAME and --scores"),
    ],
)
def test_errors_print_one_line_on_standard_error(
    services: FakeServices, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("finrl-pod: ")
    assert sentence in output.err
    assert output.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failure", "code", "sentence"),
    [
        (DataError("prices must be positive, AAPL is -1.0 on 2020-01-02"), 2, "AAPL is -1.0"),
        (Interrupted("stopped after generation 3, continue with --resume"), 130, "generation 3"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (PermissionError(13, "Permission denied", "/runs/x"), 2, "cannot use /runs/x: Permission denied"),
    ],
)
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_errors_map_to_exit_codes(
    services: FakeServices,
    failure: BaseException,
    code: int,
    sentence: str,
    as_json: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    services.failure = failure
    assert run(["demo", *as_json]) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert sentence in output.err.splitlines()[-1]


def test_unexpected_errors_keep_their_traceback(services: FakeServices) -> None:
    services.failure = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        run(["demo"])


def test_json_output_is_a_single_object(services: FakeServices, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["demo", "--quick", "--json"], ["backtest", "--strategy", "index", "--json"]):
        assert run(arguments) == 0
        output = capsys.readouterr()
        assert json.loads(output.out) == REPORT.to_dict()
        assert output.err == ""


def test_demo_uses_preset_and_seed(services: FakeServices, tmp_path: Path) -> None:
    assert run(["demo", "--quick", "--seed", "7", "--out", str(tmp_path / "o")]) == 0
    (config, out), options = services.calls[0]
    assert config.tournament == PRESETS["quick"].tournament
    assert (config.seed, out, options["resume"], options["device"]) == (7, tmp_path / "o", False, "auto")


def test_demo_and_init_take_another_panel(services: FakeServices) -> None:
    assert run(["demo", "--data", "us74", "--out", "o"]) == 0
    assert services.calls[0][0][0] == preset("laptop", "us74")
    assert run(["init", "mine.toml", "--data", "us74"]) == 0
    assert 'name = "us74"' in Path("mine.toml").read_text()


def test_unnamed_runs_use_different_folders(services: FakeServices) -> None:
    assert run(["demo"]) == run(["demo"]) == 0
    first, second = (what[1] for what, _ in services.calls)
    assert first != second
    assert first.parent == Path("runs")


def test_tournament_uses_the_seed_of_the_config(services: FakeServices) -> None:
    write_preset("quick", Path("config.toml"))
    text = Path("config.toml").read_text()
    Path("config.toml").write_text(text.replace("seed = 0", "seed = 11"))
    assert run(["tournament", "config.toml", "--out", "o", "--resume", "--device", "cpu"]) == 0
    (config, out), options = services.calls[0]
    assert (config.seed, out, options["resume"], options["device"]) == (11, Path("o"), True, "cpu")


def test_resume_requires_out(services: FakeServices, capsys: pytest.CaptureFixture[str]) -> None:
    write_preset("quick", Path("config.toml"))
    assert run(["tournament", "config.toml", "--resume"]) == 2
    assert "--resume needs --out" in capsys.readouterr().err
    assert not services.calls


def test_train_runs_a_tournament_with_one_pod(services: FakeServices) -> None:
    write_preset("laptop", Path("config.toml"))
    assert run(["train", "config.toml"]) == 0
    tournament = services.calls[0][0][0].tournament
    assert (tournament.pods, tournament.champion) == (1, 1)
    assert (tournament.exploit_fraction, tournament.reinit_fraction) == (0.0, 0.0)
    assert tournament.samples_per_generation == PRESETS["laptop"].tournament.samples_per_generation


def test_train_takes_the_overrides_of_a_tournament(services: FakeServices, capsys: pytest.CaptureFixture[str]) -> None:
    write_preset("laptop", Path("config.toml"))
    arguments = ["--set", "mandate.max_turnover=3.0", "--cost-bps", "7", "--data", "us74", "--seed", "5", "--no-test"]
    assert run(["train", "config.toml", *arguments]) == 0
    (config, _), options = services.calls[0]
    assert (config.mandate.max_turnover, config.environment.cost_bps, config.data.name) == (3.0, 7.0, "us74")
    assert (config.seed, config.tournament.pods, options["test"]) == (5, 1, False)
    shown = capsys.readouterr()
    assert "look" not in shown.err
    assert "repeat the command with --resume --out runs/config-" in shown.out


@pytest.mark.slow
def test_train_estimates_a_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["init", "config.toml", "--preset", "quick"]) == 0
    capsys.readouterr()
    assert run(["train", "config.toml", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert run(["tournament", "config.toml", "--dry-run", "--json"]) == 0
    population = json.loads(capsys.readouterr().out)
    assert plan["samples"] * PRESETS["quick"].tournament.pods == population["samples"]
    assert not Path("runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("option", [("--dry-run",), ("--no-test",), ("--data", "sample"), ("--cost-bps", "3")])
def test_options_of_markets_are_refused_with_environments(
    option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "--env", "gym:CartPole-v1", *option]) == 2
    assert f"{option[0]} is only valid with a config file" in capsys.readouterr().err


def test_backtest_forwards_given_options_only(services: FakeServices) -> None:
    Path("runs/a").mkdir(parents=True)
    assert run(["backtest", "runs/a", "--start", "2020-01-01", "--cost-bps", "5"]) == 0
    target, options = services.calls[0]
    assert target == Path("runs/a")
    assert {name: value for name, value in options.items() if value and not callable(value)} == {
        "start": "2020-01-01", "cost_bps": 5.0, "terms": BacktestTerms(),
    }  # fmt: skip


def test_result_lists_champion_verdict_and_report(services: FakeServices, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--out", "o"]) == 0
    output = capsys.readouterr()
    rows = [line for line in output.out.splitlines() if "champion" in line or "equal weight" in line]
    assert rows[0].split()[0] == "champion"
    assert "10.1" in rows[0]
    assert "1.23" in rows[0]
    assert "Not promoted.\n- its interval contains zero\n" in output.out
    assert str(Path("o") / "report.html") in output.out
    assert "No baseline had a higher Sharpe ratio on test." in output.out
    assert (
        "A further champion is look 2 at bars that overlap this test period and needs a p-value of at most 0.00833."
        in output.out
    )
    # Repeated progress of one stage is one line if standard error is not a terminal.
    assert output.err == "training: 29,740 samples/s, best validation Sharpe 1.23\n"


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_numbers_are_not_truncated_on_a_narrow_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    console.show_result(synthetic_report(synthetic_results(bars=60)), None)
    table = capsys.readouterr().out.split("Not promoted")[0]
    assert "$" not in table  # prices may be in any currency
    assert "…" not in table
    assert all(len(line) <= width for line in table.splitlines())
    assert ("Sortino" in table) == (width == 160)
    assert "Sharpe" in table
    assert "equal weight buy and hold" in table


def test_unknown_speed_score_and_time_are_omitted() -> None:
    assert console.progress_summary(progress(samples_per_second=0.0, best=None, seconds_left=None)) == ""


def test_stages_after_the_training_show_only_the_time() -> None:
    done = progress(samples=100, total_samples=100, seconds_left=None, best=0.5)
    assert console.progress_summary(done, 61.4) == "after 1:01"
    assert console.progress_summary(done) == ""
    assert "Sharpe 0.50" in console.progress_summary(
        progress(samples=100, total_samples=100, seconds_left=0.0, best=0.5)
    )


def test_the_best_score_stands_beside_that_of_the_base() -> None:
    assert "best validation Sharpe 0.50 (base 0.40)" in console.progress_summary(progress(best=0.5, base=0.4))


def test_live_line_accepts_every_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with console.progress_display(quiet=False) as report:
        report(progress(stage="[bold]reading", samples=0, total_samples=0))
        report(progress())


MISSPELT = {
    "tournament confg.toml": "there is no config confg.toml; did you mean config.toml?",
    "walkforward confg.toml": "there is no config confg.toml; did you mean config.toml?",
    "retrain confg.toml": "there is no config confg.toml; did you mean config.toml?",
    "paper run confg.toml": "there is no config confg.toml; did you mean config.toml?",
    "backtest --strategy own.py:Nmae": "own.py has no Nmae; did you mean Name?",
    "backtest equal_wieght": "there is no run in 'equal_wieght'; did you mean the strategy equal_weight?",
    "sweep --strategy wn.py:Name": "the current folder; did you mean own.py?",
    "audit --strategy equal_wieght": "unknown strategy 'equal_wieght'; did you mean equal_weight?",
    "backtest runz/mine": "there is no folder runz/mine; did you mean runs/mine?",
    "promote runs/mne": "there is no folder runs/mne; did you mean runs/mine?",
    "export runs/mne": "there is no folder runs/mne; did you mean runs/mine?",
    "evaluate runs/mne": "there is no folder runs/mne; did you mean runs/mine?",
    "registry push runs/mne": "there is no folder runs/mne; did you mean runs/mine?",
    "data import prces.csv --name x": "there is no file prces.csv; did you mean prices.csv?",
    "train --env wn.py:Name": "the current folder; did you mean own.py?",
    "check own.py:Nmae": "own.py has no Nmae; did you mean Name?",
    "tournament config.toml --data smaple": "there is no panel 'smaple' in",
}


@pytest.mark.slow
def test_misspelt_names_are_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    for name, text in (("config.toml", "seed = 1"), ("own.py", "class Name:\n    pass"), ("prices.csv", "date,A")):
        (tmp_path / name).write_text(text + "\n", encoding="utf-8")
    program = (
        "import sys\nfrom finrl_pod_app.cli.main import run\n"
        "codes = [run(line.split()) for line in sys.argv[1:]]\nprint(codes, 'torch' in sys.modules)"
    )
    environment = {**os.environ, "FINRL_POD_HOME": str(tmp_path / "home")}
    environment.pop("FINRL_POD_DATA", None)
    done = subprocess.run(
        [sys.executable, "-c", program, *MISSPELT],
        capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout == f"{[2] * len(MISSPELT)} False\n"
    for line, sentence in zip(done.stderr.splitlines(), MISSPELT.values(), strict=True):
        assert sentence in line


@pytest.mark.slow
def test_installed_script_returns_the_exit_code(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("finrl-pod")
    environment = {**os.environ, "FINRL_POD_DATA": str(tmp_path)}
    done = subprocess.run(
        [script, "tournament", "absent.toml"], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "finrl-pod: there is no config absent.toml\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirection", "code", "message"),
    [
        (">/dev/full", 2, "finrl-pod: cannot write to standard output: No space left on device\n"),
        ("| true", 2, ""),
        (">&-", 0, ""),
    ],
)
def test_full_standard_output_fails_without_a_traceback(redirection: str, code: int, message: str) -> None:
    script = Path(sys.executable).with_name("finrl-pod")
    line = f"set -o pipefail; '{script}' algorithms --json {redirection}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (code, message)
