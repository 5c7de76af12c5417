"""Verdict, trials, looks, audit and promotion of finished runs, through the services and the command line."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finrl_pod_app.cli.main import run as command
from finrl_pod_app.evaluation.audit import AuditScope, audit_env, audit_run, audit_strategy
from finrl_pod_app.evaluation.champions import strategy_identity
from finrl_pod_app.evaluation.sweeps import run_sweep
from finrl_pod_strategies.user_strategy import UserStrategy, load_user_strategy

from finrl_pod.data.panel import select
from finrl_pod.data.splits import make_splits
from finrl_pod.data.store import Store
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import DataError, InputError, RunError
from finrl_pod.evaluate.metrics import bars_per_year, sharpe
from finrl_pod.files import write_json
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.promotion.trial_registry import FILE, TrialRegistry
from finrl_pod.promotion.verdict import read_verdict
from finrl_pod.settings.algorithm_configs import AgentConfig, DQNConfig, PPOConfig
from finrl_pod.settings.run import GateConfig
from finrl_pod.tournament import snapshots
from finrl_pod.tournament.run_directory import RunDirectory
from tests.app.small_run import isolated_folders, run_backtest, run_tournament, small_config, small_panel

pytestmark = pytest.mark.slow

AGENTS = 9  # three pods, three generations


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a separate store and trial registry."""
    with isolated_folders(tmp_path_factory.mktemp("promotion")) as root:
        yield root


@pytest.fixture(scope="module")
def finished(folder: Path) -> Path:
    """Folder of a finished run."""
    run_tournament(small_config(), folder / "run", device="cpu")
    return folder / "run"


def registry(folder: Path) -> TrialRegistry:
    return TrialRegistry(folder / "home" / FILE)


def report(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return values


# ---------------------------------------------------------------------- trials, looks, verdict


def test_every_agent_and_the_ensemble_are_trials(finished: Path, folder: Path) -> None:
    counts = registry(folder).counts(small_panel().sha256)
    assert (counts.raw, counts.runs) == (AGENTS + 1, 1)
    assert 1 <= counts.clustered <= AGENTS + 1
    verdict = report(finished)["verdict"]
    assert verdict["trials"] == dataclasses.asdict(counts)
    assert verdict["looks"] == 1


def test_returns_of_trials_are_saved_with_the_run(finished: Path) -> None:
    """One file per generation. With the returns of the base added they give the leaderboard's scores."""
    files = sorted((finished / "returns").glob("*.npy"))
    assert len(files) == 3
    excess = np.concatenate([np.load(file, allow_pickle=False) for file in files], axis=1)
    splits = make_splits(small_panel().times, small_config().splits)
    assert excess.shape == (len(splits.validation) - 1, AGENTS)
    from finrl_pod_app.evaluation.champions import reference_strategy

    from finrl_pod.evaluate.backtest import backtest
    from finrl_pod.market.rules import rules_of

    config = small_config()
    market = build_market(small_panel(), (), (0, 10))
    span = (splits.validation.first, splits.validation.last)
    base = backtest(
        reference_strategy(config), small_panel(), MarketPeriod(market, *span, rules_of(config.environment), 1e6)
    )
    returns = excess + (base.equity[1:] / base.equity[:-1] - 1)[:, None]
    year = bars_per_year(small_panel().times)
    own = {sharpe(np.r_[1.0, np.cumprod(1 + column)], year) for column in returns.T}
    for row in report(finished)["leaderboard"]:
        assert min(abs(row["score"] - other) for other in own) < 1e-6


@pytest.mark.parametrize(
    "damage",
    [
        {"promoted": "no", "rules": []},
        {"promoted": True},
        {"rules": [{}]},
        {"trials": {}},
        {"rules": 5},
    ],
)
def test_damaged_verdict_is_refused(finished: Path, tmp_path: Path, damage: dict[str, Any]) -> None:
    values = json.loads((finished / "verdict.json").read_text())
    assert not values["promoted"]
    write_json(tmp_path / "verdict.json", {**values, **damage})
    with pytest.raises(RunError, match=r"the saved verdict (is damaged|contradicts its own rules)"):
        read_verdict(tmp_path)


def test_later_runs_do_not_change_a_verdict(finished: Path, folder: Path) -> None:
    before = (finished / "verdict.json").read_bytes()
    other = dataclasses.replace(small_config(), seed=6)
    document = run_tournament(other, folder / "other", device="cpu")
    assert document["verdict"]["looks"] == 2
    assert document["verdict"]["trials"]["raw"] == 2 * (AGENTS + 1)
    limits = {rule["name"]: rule["limit"] for rule in document["verdict"]["rules"]}
    assert limits["edge"] == pytest.approx(0.05 / 6)
    # The same run again, in another folder and in its own: neither is counted nor changes the verdict.
    again = run_tournament(small_config(), folder / "again", device="cpu")
    assert again["verdict"] == report(finished)["verdict"]
    run_tournament(small_config(), finished, resume=True, device="cpu")
    assert (finished / "verdict.json").read_bytes() == before
    assert registry(folder).counts(small_panel().sha256).raw == 2 * (AGENTS + 1)


def test_every_test_result_of_a_run_or_user_strategy_is_a_look(finished: Path, folder: Path, tmp_path: Path) -> None:
    def looks() -> int:
        data = RunDirectory.open(finished).data_sha256
        return sum(len(entry.looks) for entry in registry(folder).data_sets() if entry.data_sha256 == data)

    before = looks()
    assert run_backtest(finished)["looks"] >= 1
    assert looks() == before  # counted by the verdict
    run_backtest("equal_weight", data="main")
    assert looks() == before
    (tmp_path / "own.py").write_text(OWN)
    first = run_backtest(f"{tmp_path / 'own.py'}:Stateful", data="main", split="test")["looks"]
    run_sweep([f"{tmp_path / 'own.py'}:Stateful"], costs=(0.0, 10.0), data="main", split="test")
    assert looks() == before + 1  # other costs and repeated bars are not counted
    (tmp_path / "own.py").write_text(OWN + "# changed")
    assert run_backtest(f"{tmp_path / 'own.py'}:Stateful", data="main", split="test")["looks"] == first + 1
    # A panel with one symbol less is the same market.
    (tmp_path / "own.py").write_text(OWN + "# changed again")
    Store().save(dataclasses.replace(select(small_panel(), small_panel().symbols[1:]), name="fewer"))
    assert run_backtest(f"{tmp_path / 'own.py'}:Stateful", data="fewer", split="test")["looks"] == first + 2


def test_backtest_on_training_bars_is_marked_in_sample(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    default = run_backtest(finished)
    assert "in_sample" not in default
    assert run_backtest(finished, data="main")["splits"]["test"] == default["splits"]["test"]  # the run's own panel
    splits = make_splits(small_panel().times, small_config().splits)
    first, last = (str(small_panel().times[bar])[:10] for bar in (splits.validation.last - 9, splits.test.last))
    assert command(["backtest", str(finished), "--start", first, "--out", str(tmp_path / "seen")]) == 0
    printed = capsys.readouterr().out
    assert f"In sample {first}" in printed
    assert "in sample and not evidence of skill" in " ".join(printed.split())
    page = (tmp_path / "seen" / "report.html").read_text()
    assert "<h2>Results in sample</h2>" in page
    assert "Results on the test days" not in page
    assert report(tmp_path / "seen")["rules"][0].startswith("Warning: ")
    rows = run_sweep([finished, "equal_weight"], periods=[(first, last), (None, None)]).to_dict()
    assert [(row["strategy"], row["in_sample"]) for row in rows["rows"] if row["in_sample"]] == [("champion", True)]
    assert rows["in_sample"][0].startswith("champion: Warning: ")


def test_sweep_rows_name_their_run_and_champions_take_no_seed(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "copy")
    rows = run_sweep([finished, tmp_path / "copy", "random_weights"], seeds=[0, 1]).to_dict()["rows"]
    assert [(row["strategy"], row["seed"]) for row in rows] == sorted(
        [(str(finished), None), (str(tmp_path / "copy"), None), ("random_weights", 0), ("random_weights", 1)],
        key=lambda row: (row[0], row[1] or 0),
    )
    with pytest.raises(InputError, match="the champion of a run takes no seed"):
        run_sweep([finished], seeds=[0, 1])


def test_strategies_that_differ_have_different_identities(tmp_path: Path) -> None:
    class Pick:
        def __init__(self, n: int, table: Any = None) -> None:
            self.name, self.feature_names, self.n, self.table = "pick", (), n, table

        def target_weights(self, window: Any, positions: Any) -> Any:
            return None

    assert strategy_identity(Pick(1)) == strategy_identity(Pick(1))
    assert strategy_identity(Pick(1, np.arange(3.0))) == strategy_identity(Pick(1, np.arange(3.0)))
    subjects = [strategy_identity(Pick(n, table)) for n, table in ((1, None), (2, None), (1, np.arange(3.0)), (1, 2.0))]
    subjects += [
        strategy_identity(Pick(1, object())) for _ in range(2)
    ]  # an object that cannot be identified is new each time
    subjects += [strategy_identity(UserStrategy(lambda n=n: Pick(n), "pick")) for n in (3, 4)]
    (tmp_path / "own.py").write_text(OWN)
    subjects.append(strategy_identity(load_user_strategy(f"{tmp_path / 'own.py'}:Stateful")))
    (tmp_path / "own.py").write_text(OWN + "# changed")
    subjects.append(strategy_identity(load_user_strategy(f"{tmp_path / 'own.py'}:Stateful")))
    assert len(set(subjects)) == len(subjects)


def test_other_thresholds_count_as_another_look(finished: Path, folder: Path) -> None:
    looser = dataclasses.replace(small_config(generations=1), gate=GateConfig(significance_level=0.3))
    looks = run_tournament(looser, folder / "looser", device="cpu")["verdict"]["looks"]
    assert looks >= 2


# ---------------------------------------------------------------------- audit


def test_audit_of_a_sound_run_passes(finished: Path) -> None:
    audit = audit_run(finished, AuditScope(probes=3, warm_up_bars=100))
    assert audit.clean, [f.message for f in audit.findings if f.status == "fail"]
    assert {f.check for f in audit.findings} == {
        *("look-ahead", "leakage", "warm-up", "fills", "data", "sensitivity", "determinism")
    }
    assert json.dumps(audit.to_dict(), allow_nan=False)


def test_audit_finds_a_leaderboard_of_test_scores(finished: Path, folder: Path) -> None:
    broken = Path(shutil.copytree(finished, folder / "picked-on-test"))
    state = json.loads((broken / "state.json").read_text())
    for i, row in enumerate(state["leaderboard"]):
        row["score"] = 2.0 - 0.1 * i  # scores that do not come from validation
    write_json(broken / "state.json", state)
    faults = [f for f in audit_run(broken, AuditScope(probes=1)).findings if f.status == "fail"]
    assert {f.part for f in faults} == {"the champion's selection"}
    assert "was selected on other bars" in faults[0].message


def test_audit_finds_a_normaliser_fitted_on_all_bars(finished: Path, folder: Path) -> None:
    broken = Path(shutil.copytree(finished, folder / "fitted-on-all-bars"))
    panel, config = small_panel(), small_config()
    fitted_on_all = build_market(panel, config.features.names, (0, len(panel.times) - 1)).normaliser
    run = RunDirectory.open(broken)
    for file in (broken / "snapshots").glob("*.json"):
        snapshot = run.snapshot(file.stem)
        snapshots.save(broken / "snapshots", dataclasses.replace(snapshot, normaliser=fitted_on_all))
    faults = {f.part for f in audit_run(broken, AuditScope(probes=1)).findings if f.status == "fail"}
    assert faults & {f"the normaliser of {name}" for name in config.features.names}


def test_audit_finds_fills_at_the_observed_close(folder: Path) -> None:
    config = small_config(generations=1, pods=2)
    config = dataclasses.replace(config, environment=dataclasses.replace(config.environment, fill="same_close"))
    document = run_tournament(config, folder / "same-close", device="cpu")
    (rule,) = [rule for rule in document["verdict"]["rules"] if rule["name"] == "audit"]
    assert not rule["passed"]
    assert "at the close that it observed" in rule["sentence"]
    assert not document["verdict"]["promoted"]


def test_audit_of_baselines_and_environments_passes() -> None:
    for name in ("equal_weight", "index"):
        assert audit_strategy(name, "main", AuditScope(probes=2, warm_up_bars=100)).clean
    for kind in ("portfolio", "stock_trading", "discrete"):
        assert audit_env(kind, "main", AuditScope(probes=2, warm_up_bars=320)).clean


OWN = """
import numpy as np

class Stateful:
    feature_names = ("return_5",)

    def __init__(self):
        self.calls = 0

    def target_weights(self, window, positions):
        self.calls += 1  # state kept between bars must not matter
        if self.calls % 3:
            return None
        score = np.exp(np.nan_to_num(window.features[:, 0]))
        return score / score.sum()

class Unseeded:
    def target_weights(self, window, positions):
        weights = np.random.rand(len(window.symbols))
        return weights / weights.sum()
"""


def test_audit_of_user_strategies(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    assert audit_strategy(f"{tmp_path / 'own.py'}:Stateful", "main", AuditScope(probes=2, warm_up_bars=100)).clean
    found = audit_strategy(f"{tmp_path / 'own.py'}:Unseeded", "main", AuditScope(probes=2, warm_up_bars=100))
    # Random decisions are one failure: they change whether or not later bars do.
    assert [f.check for f in found.findings if f.status == "fail"] == ["determinism"]


def test_audit_refuses_unknown_subjects() -> None:
    with pytest.raises(InputError, match="--env must be one of portfolio, stock_trading, discrete, got 'options'"):
        audit_env("options", "main")
    with pytest.raises(InputError, match="unknown strategy 'equal'"):
        audit_strategy("equal", "main")
    with pytest.raises(DataError, match="there is no panel 'nothing'"):
        audit_strategy("equal_weight", "nothing")


# ---------------------------------------------------------------------- commands


def test_promote_prints_the_reasons_and_exits_with_1(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not read_verdict(finished).promoted  # a hundred days of noise
    assert command(["promote", str(finished)]) == 1
    printed = capsys.readouterr().out
    assert "\nNot promoted. Mean active return on test" in f"\n{printed}"
    assert "edge" in printed
    assert command(["promote", str(finished), "--json"]) == 1
    report = json.loads((finished / "report.json").read_text())
    parts = {name: report.get(name) for name in ("practically_base", "ladder", "looks_so_far")}
    assert json.loads(capsys.readouterr().out) == read_verdict(finished).to_dict() | parts


def test_promote_exits_with_0_for_a_promoted_champion(
    finished: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = folder / "good"
    values = read_verdict(finished).to_dict()
    rules = [{**rule, "passed": True} for rule in values["rules"]]
    write_json(good / "verdict.json", {**values, "promoted": True, "rules": rules})
    assert command(["promote", str(good)]) == 0
    assert "\nPromoted. Mean active return on test" in f"\n{capsys.readouterr().out}"


def test_promote_without_a_verdict_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["promote", str(tmp_path)]) == 2
    assert "holds no verdict" in capsys.readouterr().err


def test_audit_command(folder: Path, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["audit", "--strategy", "equal_weight", "--data", "main", "--probes", "2", "--warm-up", "100"]
    assert command(arguments) == 0
    printed = capsys.readouterr()
    assert "No failures" in printed.out
    assert "look-ahead" in printed.err  # progress
    assert command([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["clean"] is True
    assert printed.err == ""
    broken = folder / "picked-on-test"
    assert command(["audit", str(broken), "--probes", "1"]) == 1
    assert "1 failure: the results are not valid" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "exactly one of a run directory, --strategy NAME and --env KIND"),
        (["--strategy", "index", "--env", "portfolio"], "exactly one of"),
        (["runs/none"], "there is no folder runs/none"),
        (["runs/none", "--data", "main"], "a run is audited on its own data"),
    ],
)
def test_audit_command_refuses_invalid_arguments_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["audit", *arguments, "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_trials_command_lists_the_registry(finished: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["trials", "--data", "main", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["register"] == str(folder / "home" / FILE)
    (entry,) = document["data_sets"]
    assert entry["name"] == "main"
    assert entry["trials"] == registry(folder).counts(small_panel().sha256).raw
    assert entry["looks"][0]["first"] == "2021-07-01"
    assert command(["trials"]) == 0
    assert re.search(
        r"main: look \d+ of \d+ at bars that overlap 2021-07-01 to 2021-10-31, on", capsys.readouterr().out
    )
    assert command(["trials", "--data", "other", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data_sets"] == []


@pytest.mark.parametrize(
    "agent",
    [
        DQNConfig(hidden=(4,), buffer_size=512, batch_size=16, learning_starts=32),
        PPOConfig(hidden=(4, 4), horizon=8, minibatches=2, policy="mlp"),
    ],
)
def test_tournament_with_discrete_actions_passes_the_audit(folder: Path, agent: AgentConfig) -> None:
    config = small_config(samples_per_generation=64, generations=1)
    environment = dataclasses.replace(config.environment, kind="discrete", group=1)
    config = dataclasses.replace(config, agent=agent, environment=environment)
    document = run_tournament(config, folder / f"discrete-{agent.algorithm}", device="cpu")
    (rule,) = (rule for rule in document["verdict"]["rules"] if rule["name"] == "audit")
    assert rule["passed"], rule["sentence"]
