"""From a finished run to its verdict, its audit and its promotion, and through the command line."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finrl_pod_app.cli.main import run as command
from finrl_pod_app.services.audit_targets import audit_env, audit_run, audit_strategy
from finrl_pod_app.services.backtests import run_backtest
from finrl_pod_app.services.sweeps import run_sweep
from finrl_pod_app.services.training import run_tournament
from finrl_pod_app.services.trial_log import strategy_identity
from finrl_pod_strategies.user_strategy import UserStrategy, load_user_strategy

from finrl_pod.data.panel import select
from finrl_pod.data.splits import make_splits
from finrl_pod.data.store import Store
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import DataError, InputError, RunError
from finrl_pod.evaluate.metrics import bars_per_year, sharpe
from finrl_pod.files import write_json
from finrl_pod.promotion.gate import read_verdict
from finrl_pod.promotion.trial_registry import FILE, TrialRegistry
from finrl_pod.settings.algorithm_configs import AgentConfig, DQNConfig, PPOConfig
from finrl_pod.settings.run import GateConfig
from finrl_pod.tournament import snapshots
from finrl_pod.tournament.run_directory import RunDirectory
from tests.app.small_run import isolated_folders, small_config, small_panel

AGENTS = 9  # three pods, three generations


@pytest.fixture(scope="module", autouse=True)
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store and a register of this module's own."""
    with isolated_folders(tmp_path_factory.mktemp("judging")) as folder:
        yield folder


@pytest.fixture(scope="module")
def finished(room: Path) -> Path:
    """The folder of a finished run."""
    run_tournament(small_config(), room / "run", device="cpu")
    return room / "run"


def registry(room: Path) -> TrialRegistry:
    return TrialRegistry(room / "home" / FILE)


def report(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return values


# ---------------------------------------------------------------------- trials, looks, verdict


def test_every_agent_and_the_ensemble_are_counted(finished: Path, room: Path) -> None:
    counts = registry(room).counts(small_panel().sha256)
    assert (counts.raw, counts.runs) == (AGENTS + 1, 1)
    assert 1 <= counts.clustered <= AGENTS + 1
    verdict = report(finished)["verdict"]
    assert verdict["trials"] == dataclasses.asdict(counts)
    assert verdict["looks"] == 1


def test_the_returns_of_trials_are_kept_beside_the_run(finished: Path) -> None:
    """Generation by generation; with equal weight added back they are the scores of the leaderboard."""
    files = sorted((finished / "returns").glob("*.npy"))
    assert len(files) == 3
    excess = np.concatenate([np.load(file, allow_pickle=False) for file in files], axis=1)
    splits = make_splits(small_panel().times, small_config().splits)
    assert excess.shape == (len(splits.validation) - 1, AGENTS)
    from finrl_pod_strategies.baselines import run_baseline

    from finrl_pod.market.rules import rules_of

    config = small_config()
    market = build_market(small_panel(), (), (0, 10))
    span = (splits.validation.first, splits.validation.last)
    equal = run_baseline("equal_weight", small_panel(), market, *span, rules_of(config.environment), 1e6)
    returns = excess + (equal.equity[1:] / equal.equity[:-1] - 1)[:, None]
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
def test_a_damaged_verdict_is_no_yes(finished: Path, tmp_path: Path, damage: dict[str, Any]) -> None:
    values = json.loads((finished / "verdict.json").read_text())
    assert not values["promoted"]
    write_json(tmp_path / "verdict.json", {**values, **damage})
    with pytest.raises(RunError, match=r"the saved verdict (is damaged|contradicts its own rules)"):
        read_verdict(tmp_path)


def test_a_verdict_stands_whatever_comes_later(finished: Path, room: Path) -> None:
    before = (finished / "verdict.json").read_bytes()
    other = dataclasses.replace(small_config(), seed=6)
    document = run_tournament(other, room / "other", device="cpu")
    assert document["verdict"]["looks"] == 2
    assert document["verdict"]["trials"]["raw"] == 2 * (AGENTS + 1)
    limits = {rule["name"]: rule["limit"] for rule in document["verdict"]["rules"]}
    assert limits["probabilistic_sharpe"] == pytest.approx(0.975)
    # The same run again, elsewhere and in its own folder: neither counts, neither changes what was said.
    again = run_tournament(small_config(), room / "again", device="cpu")
    assert again["verdict"] == report(finished)["verdict"]
    run_tournament(small_config(), finished, resume=True, device="cpu")
    assert (finished / "verdict.json").read_bytes() == before
    assert registry(room).counts(small_panel().sha256).raw == 2 * (AGENTS + 1)


def test_every_backtest_of_what_was_made_on_the_data_is_a_look(finished: Path, room: Path, tmp_path: Path) -> None:
    def looks() -> int:
        data = RunDirectory.open(finished).data_sha256
        return sum(len(entry["looks"]) for entry in registry(room).data_sets() if entry["data_sha256"] == data)

    before = looks()
    assert run_backtest(finished)["looks"] >= 1
    assert looks() == before  # the verdict has looked already
    run_backtest("equal_weight", data="made")
    assert looks() == before
    (tmp_path / "own.py").write_text(OWN)
    first = run_backtest(f"{tmp_path / 'own.py'}:Patient", data="made")["looks"]
    run_sweep([f"{tmp_path / 'own.py'}:Patient"], costs=(0.0, 10.0), data="made")
    assert looks() == before + 1  # its costs are no further looks, and it has looked at these bars before
    (tmp_path / "own.py").write_text(OWN + "# changed")
    assert run_backtest(f"{tmp_path / 'own.py'}:Patient", data="made")["looks"] == first + 1
    # Nor does leaving out a symbol make the days unseen.
    (tmp_path / "own.py").write_text(OWN + "# changed again")
    Store().save(dataclasses.replace(select(small_panel(), small_panel().symbols[1:]), name="fewer"))
    assert run_backtest(f"{tmp_path / 'own.py'}:Patient", data="fewer")["looks"] == first + 2


def test_years_that_a_champion_was_trained_on_are_no_test(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = run_backtest(finished)
    assert "in_sample" not in honest
    assert run_backtest(finished, data="made")["splits"]["test"] == honest["splits"]["test"]  # its own data, by name
    splits = make_splits(small_panel().times, small_config().splits)
    first, last = (str(small_panel().times[bar])[:10] for bar in (splits.validation.last - 9, splits.test.last))
    assert command(["backtest", str(finished), "--start", first, "--out", str(tmp_path / "seen")]) == 0
    shown = capsys.readouterr().out
    assert f"In sample {first}" in shown
    assert "in sample and not evidence of skill" in " ".join(shown.split())
    page = (tmp_path / "seen" / "report.html").read_text()
    assert "<h2>Results in sample</h2>" in page
    assert "Results on the test days" not in page
    assert report(tmp_path / "seen")["rules"][0].startswith("Warning: ")
    rows = run_sweep([finished, "equal_weight"], periods=[(first, last), (None, None)])
    assert [(row["strategy"], row["in_sample"]) for row in rows["rows"] if row["in_sample"]] == [("champion", True)]
    assert rows["in_sample"][0].startswith("champion: Warning: ")


def test_rows_of_several_runs_are_told_apart_and_have_no_seeds(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "copy")
    rows = run_sweep([finished, tmp_path / "copy", "random_weights"], seeds=[0, 1])["rows"]
    assert [(row["strategy"], row["seed"]) for row in rows] == sorted(
        [(str(finished), None), (str(tmp_path / "copy"), None), ("random_weights", 0), ("random_weights", 1)],
        key=lambda row: (row[0], row[1] or 0),
    )
    with pytest.raises(InputError, match="a run's champion takes no seed"):
        run_sweep([finished], seeds=[0, 1])


def test_objects_that_differ_are_looks_of_their_own(tmp_path: Path) -> None:
    class Pick:
        def __init__(self, n: int, table: Any = None) -> None:
            self.name, self.feature_names, self.n, self.table = "pick", (), n, table

        def target_weights(self, window: Any, positions: Any) -> Any:
            return None

    assert strategy_identity(Pick(1)) == strategy_identity(Pick(1))
    assert strategy_identity(Pick(1, np.arange(3.0))) == strategy_identity(Pick(1, np.arange(3.0)))
    subjects = [strategy_identity(Pick(n, table)) for n, table in ((1, None), (2, None), (1, np.arange(3.0)), (1, 2.0))]
    subjects += [strategy_identity(Pick(1, object())) for _ in range(2)]  # what cannot be told counts each time
    subjects += [strategy_identity(UserStrategy(lambda n=n: Pick(n), "pick")) for n in (3, 4)]
    (tmp_path / "own.py").write_text(OWN)
    subjects.append(strategy_identity(load_user_strategy(f"{tmp_path / 'own.py'}:Patient")))
    (tmp_path / "own.py").write_text(OWN + "# changed")
    subjects.append(strategy_identity(load_user_strategy(f"{tmp_path / 'own.py'}:Patient")))
    assert len(set(subjects)) == len(subjects)


def test_other_thresholds_are_another_look(finished: Path, room: Path) -> None:
    looser = dataclasses.replace(small_config(generations=1), gate=GateConfig(min_dsr=0.1, max_pbo=1.0))
    looks = run_tournament(looser, room / "looser", device="cpu")["verdict"]["looks"]
    assert looks >= 2


# ---------------------------------------------------------------------- audit


def test_an_honest_run_is_clean(finished: Path) -> None:
    audit = audit_run(finished, probes=3, warm_up_bars=100)
    assert audit.clean, [f.message for f in audit.findings if f.status == "fail"]
    assert {f.check for f in audit.findings} == {
        *("look-ahead", "leakage", "warm-up", "fills", "data", "sensitivity", "determinism")
    }
    assert json.dumps(audit.plain(), allow_nan=False)


def test_a_leaderboard_of_test_scores_is_found(finished: Path, room: Path) -> None:
    broken = Path(shutil.copytree(finished, room / "picked-on-test"))
    state = json.loads((broken / "state.json").read_text())
    for i, row in enumerate(state["leaderboard"]):
        row["score"] = 2.0 - 0.1 * i  # as if other bars had been scored
    write_json(broken / "state.json", state)
    faults = [f for f in audit_run(broken, probes=1).findings if f.status == "fail"]
    assert {f.part for f in faults} == {"the champion's selection"}
    assert "was selected on other bars" in faults[0].message


def test_a_normaliser_that_saw_everything_is_found(finished: Path, room: Path) -> None:
    broken = Path(shutil.copytree(finished, room / "fitted-on-everything"))
    panel, config = small_panel(), small_config()
    everything = build_market(panel, config.features.names, (0, len(panel.times) - 1)).normaliser
    run = RunDirectory.open(broken)
    for file in (broken / "snapshots").glob("*.json"):
        snapshot = run.snapshot(file.stem)
        snapshots.save(broken / "snapshots", dataclasses.replace(snapshot, normaliser=everything))
    faults = {f.part for f in audit_run(broken, probes=1).findings if f.status == "fail"}
    assert faults & {f"the normaliser of {name}" for name in config.features.names}


def test_same_close_fills_are_found(room: Path) -> None:
    config = small_config(generations=1, pods=2)
    config = dataclasses.replace(config, environment=dataclasses.replace(config.environment, fill="same_close"))
    document = run_tournament(config, room / "same-close", device="cpu")
    (rule,) = [rule for rule in document["verdict"]["rules"] if rule["name"] == "audit"]
    assert not rule["passed"]
    assert "at the close that it observed" in rule["sentence"]
    assert not document["verdict"]["promoted"]


def test_baselines_and_environments_are_clean() -> None:
    for name in ("equal_weight", "index"):
        assert audit_strategy(name, "made", probes=2, warm_up_bars=100).clean
    for kind in ("portfolio", "stock_trading"):
        assert audit_env(kind, "made", probes=2, warm_up_bars=320).clean


OWN = """
import numpy as np

class Patient:
    feature_names = ("return_5",)

    def __init__(self):
        self.asked = 0

    def target_weights(self, window, positions):
        self.asked += 1  # what it remembers of other bars must not tell
        if self.asked % 3:
            return None
        score = np.exp(np.nan_to_num(window.features[:, 0]))
        return score / score.sum()

class Restless:
    def target_weights(self, window, positions):
        weights = np.random.rand(len(window.symbols))
        return weights / weights.sum()
"""


def test_a_strategy_of_ones_own_is_audited(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    assert audit_strategy(f"{tmp_path / 'own.py'}:Patient", "made", probes=2, warm_up_bars=100).clean
    found = audit_strategy(f"{tmp_path / 'own.py'}:Restless", "made", probes=2, warm_up_bars=100)
    # What is not the same twice is one fault: it would move whether or not the future did.
    assert [f.check for f in found.findings if f.status == "fail"] == ["determinism"]


def test_bad_subjects_are_refused() -> None:
    with pytest.raises(InputError, match="--env must be one of portfolio, stock_trading, discrete, got 'casino'"):
        audit_env("casino", "made")
    with pytest.raises(InputError, match="unknown strategy 'equal'"):
        audit_strategy("equal", "made")
    with pytest.raises(DataError, match="there is no panel 'nothing'"):
        audit_strategy("equal_weight", "nothing")


# ---------------------------------------------------------------------- commands


def test_promote_says_no_with_the_reasons(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not read_verdict(finished).promoted  # a hundred days of noise earn nobody a place
    assert command(["promote", str(finished)]) == 1
    shown = capsys.readouterr().out
    assert "The champion is not promoted: " in shown
    assert "deflated sharpe" in shown
    assert command(["promote", str(finished), "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == read_verdict(finished).plain()


def test_promote_says_yes(finished: Path, room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = room / "good"
    values = read_verdict(finished).plain()
    rules = [{**rule, "passed": True} for rule in values["rules"]]
    write_json(good / "verdict.json", {**values, "promoted": True, "rules": rules})
    assert command(["promote", str(good)]) == 0
    assert "The champion is promoted: " in capsys.readouterr().out


def test_promote_without_a_verdict_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["promote", str(tmp_path)]) == 2
    assert "holds no verdict" in capsys.readouterr().err


def test_audit_through_the_command(room: Path, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["audit", "--strategy", "equal_weight", "--data", "made", "--probes", "2", "--warm-up", "100"]
    assert command(arguments) == 0
    shown = capsys.readouterr()
    assert "No failures" in shown.out
    assert "look-ahead" in shown.err  # progress
    assert command([*arguments, "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["clean"] is True
    assert shown.err == ""
    broken = room / "picked-on-test"
    assert command(["audit", str(broken), "--probes", "1"]) == 1
    assert "1 failures: the results are not valid" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "exactly one of a run directory, --strategy NAME and --env KIND"),
        (["--strategy", "index", "--env", "portfolio"], "exactly one of"),
        (["runs/none"], "holds no run with a finished generation"),
        (["runs/none", "--data", "made"], "a run is audited on its own data"),
    ],
)
def test_audit_refuses_in_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["audit", *arguments, "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
    assert shown.err.count("\n") == 1


def test_the_register_is_shown(finished: Path, room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["trials", "--data", "made", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["register"] == str(room / "home" / FILE)
    (entry,) = document["data_sets"]
    assert entry["name"] == "made"
    assert entry["trials"] == registry(room).counts(small_panel().sha256).raw
    assert entry["looks"][0]["first"] == "2021-07-01"
    assert command(["trials"]) == 0
    assert "made: look at 2021-07-01 to 2021-10-31 on" in capsys.readouterr().out
    assert command(["trials", "--data", "other", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data_sets"] == []


@pytest.mark.parametrize(
    "agent",
    [
        DQNConfig(hidden=(4,), buffer_size=512, batch_size=16, learning_starts=32),
        PPOConfig(hidden=(4, 4), horizon=8, minibatches=2, policy="mlp"),
    ],
)
def test_a_tournament_of_choices_is_judged_as_any(room: Path, agent: AgentConfig) -> None:
    config = small_config(samples_per_generation=64, generations=1)
    environment = dataclasses.replace(config.environment, kind="discrete", group=1)
    config = dataclasses.replace(config, agent=agent, environment=environment)
    document = run_tournament(config, room / f"choices-{agent.algorithm}", device="cpu")
    (rule,) = (rule for rule in document["verdict"]["rules"] if rule["name"] == "audit")
    assert rule["passed"], rule["sentence"]
    assert audit_env("discrete", "made").clean
