"""Runs on disk: search, names, status, summaries and verdicts."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from finrl_pod_app.dashboard.actions import jobs, run_changes
from finrl_pod_app.dashboard.queries import checks, runs
from finrl_pod_app.environment_training.config import TrainingConfig
from finrl_pod_app.environment_training.folder import RunFolder
from finrl_pod_app.setup import progress_file

from finrl_pod.errors import InputError, RunError
from finrl_pod.settings.algorithm_configs import PPOConfig
from finrl_pod.settings.run import parse
from finrl_pod.tournament.progress import Progress
from tests.app.small_run import small_config

pytestmark = pytest.mark.slow

TRAINING = Progress("training", 10, 100, samples_per_second=2.0, best=None, seconds_left=45.0)


def copy_run(finished: Path, root: Path, *names: str) -> None:
    for name in names:
        shutil.copytree(finished, root / name)


def test_find_runs_in_nested_folders(finished: Path, tmp_path: Path) -> None:
    copy_run(finished, tmp_path, "a", "walk/fold-01/seed-0", "too/deep/for/it", ".hidden")
    (tmp_path / "empty").mkdir()
    os.utime(tmp_path / "a" / "report.json", (2e9, 2e9))
    found = runs.find_runs(tmp_path)
    assert [run.name for run in found] == ["a", "walk/fold-01/seed-0"]
    assert found[0].changed == 2e9
    assert all(run.has_champion for run in found)
    assert runs.find_runs(tmp_path / "none") == []


def test_symbolic_links_are_not_followed(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "out").symlink_to(finished)
    assert runs.find_runs(tmp_path) == []


@pytest.mark.parametrize("name", ["", "..", "../mine", "/etc", "a/../../mine", "nobody", "."])
def test_open_run_rejects_names_outside_the_root(name: str, finished: Path, tmp_path: Path) -> None:
    copy_run(finished, tmp_path, "mine")
    (tmp_path / "root").mkdir()
    copy_run(finished, tmp_path / "root", "a")
    with pytest.raises(RunError, match="no run"):
        runs.open_run(tmp_path / "root", name)
    assert runs.open_run(tmp_path / "root", "a").has_champion


def test_summary_matches_the_report(finished: Path) -> None:
    summary = runs.summarise(runs.open_run(finished.parent, "mine"))
    report = json.loads((finished / "report.json").read_text())
    champion = report["validation"]["strategies"]["champion"]
    assert summary.error == ""
    assert summary.score == report["leaderboard"][0]["score"]
    assert summary.validation == champion
    assert summary.settings["tournament.pods"] == "3"
    assert (summary.generation, summary.generations, summary.pods, summary.data) == (3, 3, 3, "main")
    assert summary.promoted is report["verdict"]["promoted"]
    assert runs.champions(runs.open_run(finished.parent, "mine")) == tuple(report["champion"]["members"])


def test_the_table_of_runs_has_validation_metrics_and_settings_but_no_test_figure(finished: Path) -> None:
    summary = runs.summarise(runs.open_run(finished.parent, "mine"))
    report = json.loads((finished / "report.json").read_text())
    table = runs.runs_table([summary], ["finished"])
    assert table.loc[0, "validation.sharpe"] == report["validation"]["strategies"]["champion"]["sharpe"]
    assert table.loc[0, "tournament.pods"] == "3"
    tested = {value for value in report["test"]["strategies"]["champion"].values() if isinstance(value, float)}
    tested -= set(report["validation"]["strategies"]["champion"].values())
    assert not tested & {value for value in table.loc[0] if isinstance(value, float)}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.json", "{"),
        ("config.json", "{}"),
        ("config.json", '{"config": {"tournament": 3}}'),
        ("state.json", "[]"),
        ("state.json", '{"samples": 1, "seconds": 1, "leaderboard": [{}], "generation": 0}'),
        ("verdict.json", '{"statistics": 3}'),
        ("verdict.json", '{"statistics": {}}'),
    ],
)
def test_damaged_files_set_the_error(file: str, text: str, finished: Path, tmp_path: Path) -> None:
    copy_run(finished, tmp_path, "mine")
    (tmp_path / "mine" / file).write_text(text)
    summary = runs.summarise(runs.open_run(tmp_path, "mine"))
    assert "damaged" in summary.error
    table = runs.runs_table([summary], ["finished"])
    assert table.loc[0, "name"] == "mine"
    assert table.loc[0, "progress"] == 0.0


def test_status_from_files_and_process(finished: Path, tmp_path: Path) -> None:
    copy_run(finished, tmp_path, "mine")
    run, folder = runs.open_run(tmp_path, "mine"), tmp_path / "mine"
    assert runs.status_of(run) == "finished"
    (folder / "report.json").unlink()
    assert runs.status_of(run) == "interrupted"
    this_process = progress_file.identity(os.getpid())
    (folder / progress_file.FILE).write_text(
        json.dumps({"process": this_process, "progress": dataclasses.asdict(TRAINING)})
    )
    assert runs.status_of(run) == "running"
    assert runs.progress_of(run) == TRAINING
    (folder / progress_file.FILE).write_text(
        json.dumps({"process": {**this_process, "began": 1.0}})
    )  # the pid was reused
    assert runs.status_of(run) == "interrupted"
    (folder / runs.JOB).write_text(json.dumps({"process": this_process}))
    assert runs.status_of(run) == "running"
    for file in (progress_file.FILE, runs.JOB):
        (folder / file).write_text("nonsense")
    assert runs.status_of(run) == "interrupted"
    (folder / "config.json").unlink()
    assert runs.status_of(run) == "failed"


def test_run_of_a_walkforward_finishes_with_its_last_generation(finished: Path, tmp_path: Path) -> None:
    copy_run(finished, tmp_path, "walk/fold-01/seed-0")
    folder = tmp_path / "walk" / "fold-01" / "seed-0"
    for name in ("report.json", "verdict.json"):  # only the walk-forward as a whole has these
        (folder / name).unlink()
    run = runs.open_run(tmp_path, "walk/fold-01/seed-0")
    assert runs.status_of(run) == "interrupted"
    (tmp_path / "walk" / runs.PLAN).write_text('{"folds": 3, "seeds": 2}')
    assert runs.walkforward_of(run) == tmp_path / "walk"
    assert runs.status_of(run) == "finished"
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, "generation": 1}))
    stopped = runs.open_run(tmp_path, "walk/fold-01/seed-0")
    assert runs.status_of(stopped) == "interrupted"
    with pytest.raises(RunError, match=r"finrl-pod walkforward CONFIG.toml --folds 3 --seeds 2 --resume --out .*walk"):
        jobs.resume(stopped)


def test_gymnasium_trainings_are_not_listed(finished: Path, tmp_path: Path) -> None:
    copy_run(finished, tmp_path, "mine")
    RunFolder(tmp_path / "pole").create(TrainingConfig("gym:CartPole-v1", PPOConfig(), 1_000))
    (tmp_path / "pole" / "state.json").write_text("{}")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "config.json").write_text("{")
    assert {run.name for run in runs.find_runs(tmp_path)} == {"mine", "torn"}
    with pytest.raises(RunError, match="no run 'pole'"):
        runs.open_run(tmp_path, "pole")


def test_tags_are_saved_and_checked(finished: Path, tmp_path: Path) -> None:
    copy_run(finished, tmp_path, "mine")
    run_changes.save_tags(runs.open_run(tmp_path, "mine"), ["two  words", "b", "b", " "])
    run = runs.open_run(tmp_path, "mine")
    assert runs.summarise(run).tags == ("two words", "b")
    for tags in (["x" * 31], [str(i) for i in range(21)], ["a\x1b"]):
        with pytest.raises(InputError):
            run_changes.save_tags(run, tags)
    assert runs.summarise(runs.open_run(tmp_path, "mine")).tags == ("two words", "b")


def test_log_tail_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "job.json").write_text("{}")
    (tmp_path / "mine" / "log.txt").write_bytes(b"begin\n" + b"\xff" * 10_000 + b"\nthe end\n")
    tail = runs.log_tail(runs.open_run(tmp_path, "mine"))
    assert tail.endswith("the end")
    assert "begin" not in tail
    assert len(tail) <= 4096


def test_config_of_a_run(finished: Path, tmp_path: Path) -> None:
    assert runs.config(runs.open_run(finished.parent, "mine")) == small_config()
    assert parse({}) != small_config()
    copy_run(finished, tmp_path, "mine")
    (tmp_path / "mine" / "config.json").write_text('{"config": 3}')
    with pytest.raises(RunError, match="config is missing"):
        runs.config(runs.open_run(tmp_path, "mine"))


def test_verdict_and_its_rules(finished: Path, tmp_path: Path) -> None:
    verdict = runs.verdict(runs.open_run(finished.parent, "mine"))
    assert verdict is not None
    table = checks.rules_table(verdict)
    assert (table["passed"] == checks.RULE_PASSED).tolist() == [rule.passed for rule in verdict.rules]
    assert (table["passed"] == checks.RULE_PASSED).all() == verdict.promoted
    assert table["value"].dtype == np.float64
    copy_run(finished, tmp_path, "mine")
    (tmp_path / "mine" / "verdict.json").write_text('{"promoted": true}')
    with pytest.raises(RunError, match=r"damaged: verdict\.reasons: "):
        runs.verdict(runs.open_run(tmp_path, "mine"))
    (tmp_path / "mine" / "verdict.json").unlink()
    assert runs.verdict(runs.open_run(tmp_path, "mine")) is None
