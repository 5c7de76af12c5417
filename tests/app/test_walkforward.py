"""Walk-forward: plan, saved results, resume, and the combined curve as one account."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finrl_pod_app.cli.main import run as command
from finrl_pod_app.setup import progress_file
from finrl_pod_app.setup.presets import config_text
from finrl_pod_app.training.walkforward import fold_config, plan, run_walkforward

from finrl_pod.data.splits import make_splits
from finrl_pod.errors import DataError, InputError, Interrupted, RunError
from finrl_pod.evaluate.metrics import bars_per_year, sharpe
from finrl_pod.promotion.trial_registry import FILE, TrialRegistry
from finrl_pod.promotion.verdict import read_verdict
from finrl_pod.tournament.progress import Progress
from tests.app.small_run import isolated_folders, small_config, small_panel

pytestmark = pytest.mark.slow

CONFIG = small_config(generations=1, pods=2, champion=1)
FOLDS, SEEDS = 2, 2


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a separate store and trial registry."""
    with isolated_folders(tmp_path_factory.mktemp("walkforward")) as root:
        yield root


@pytest.fixture(scope="module")
def resumed(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Folder and result of a walk-forward that was interrupted in its third run and resumed."""
    out = folder / "walk"

    def stop(progress: Progress) -> None:
        if progress.stage.startswith("fold 2 of 2, seed 1 of 2"):
            process = progress_file.process_of(progress_file.read(out / "fold-02" / "seed-5" / progress_file.FILE))
            assert process is not None
            assert process.pid == os.getpid()  # progress of the active run is visible
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=r"kept in .* --resume"):
        run_walkforward(CONFIG, out, folds=FOLDS, seeds=SEEDS, device="cpu", progress=stop)
    assert not (out / "walkforward.json").exists()
    assert list(out.rglob(progress_file.FILE)) == []
    return out, run_walkforward(CONFIG, out, folds=FOLDS, seeds=SEEDS, resume=True, device="cpu")


def curves(out: Path) -> dict[str, np.ndarray]:
    rows = list(csv.DictReader((out / "curves.csv").read_text().splitlines()))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0] if name != "time"}


def test_parts_of_a_walk_forward_add_up_to_its_seconds(resumed: tuple[Path, dict[str, Any]]) -> None:
    out, document = resumed
    timing = document["timing"]
    seconds = {name: value for name, value in timing.items() if name.endswith("_seconds")}
    assert sum(seconds.values()) == pytest.approx(2 * timing["total_seconds"])
    assert min(seconds.values()) > 0
    assert timing["samples"] > 0
    assert json.loads((out / "report.json").read_text())["timing"] == timing


def test_resumed_walkforward_equals_an_uninterrupted_one(resumed: tuple[Path, dict[str, Any]], folder: Path) -> None:
    uninterrupted = run_walkforward(CONFIG, folder / "uninterrupted", folds=FOLDS, seeds=SEEDS, device="cpu")
    assert uninterrupted == {**resumed[1], "timing": uninterrupted["timing"]}
    assert json.loads((resumed[0] / "walkforward.json").read_text()) == resumed[1]
    # The second walk-forward repeats the first: no new trials, no new look.
    assert TrialRegistry(folder / "home" / FILE).counts(small_panel().sha256).raw == FOLDS * SEEDS * 2
    assert resumed[1]["verdict"]["looks"] == 1


def test_plan_covers_validation_and_test_of_the_config() -> None:
    panel = small_panel()
    folds = plan(CONFIG, panel, FOLDS)
    splits = make_splits(panel.times, CONFIG.splits)
    assert folds[0].test.first == splits.validation.first
    assert folds[-1].test.last == splits.test.last
    for fold in folds:
        own = make_splits(panel.times, fold_config(CONFIG, panel, fold, 5).splits)
        assert (own.train, own.validation, own.test) == (fold.train, fold.validation, fold.test)
        assert own.train.last + CONFIG.splits.embargo < own.validation.first
        assert own.validation.last + CONFIG.splits.embargo < own.test.first


def test_every_fold_and_seed_is_saved(resumed: tuple[Path, dict[str, Any]]) -> None:
    out, document = resumed
    assert [(row["fold"], row["seed"]) for row in document["runs"]] == [(1, 5), (1, 6), (2, 5), (2, 6)]
    for row in document["runs"]:
        folder = out / f"fold-{row['fold']:02d}" / f"seed-{row['seed']}"
        assert json.loads((folder / "state.json").read_text())["generation"] == 0
        assert (folder / "returns" / "0000.npy").exists()
    assert [fold["fold"] for fold in document["folds"]] == [1, 2]
    assert len(document["seeds"]) == SEEDS
    assert (out / "report.html").stat().st_size > 100_000


def test_combined_curve_is_one_account(resumed: tuple[Path, dict[str, Any]]) -> None:
    out, document = resumed
    own = curves(out)
    splits = make_splits(small_panel().times, CONFIG.splits)
    assert len(own["champion"]) == splits.test.last - splits.validation.first + 1
    year = bars_per_year(small_panel().times)
    assert sharpe(own["champion"], year) == pytest.approx(document["strategies"]["champion"]["sharpe"], abs=1e-3)
    for seed in document["seeds"]:
        assert sharpe(own[f"champion of seed {seed['seed']}"], year) == pytest.approx(seed["sharpe"], abs=1e-3)
    # A fold's Sharpe ratio is that of its section of the curve.
    first = document["folds"][1]["test"][0]
    times = [row["time"] for row in csv.DictReader((out / "curves.csv").read_text().splitlines())]
    part = own["champion of seed 5"][times.index(first) :]
    (row,) = [row for row in document["runs"] if (row["fold"], row["seed"]) == (2, 5)]
    assert sharpe(part, year) == pytest.approx(row["sharpe"], abs=2e-3)
    # Costs at the boundary of two folds are paid once.
    for seed in document["seeds"]:
        paid = [row["costs_paid"] for row in document["runs"] if row["seed"] == seed["seed"]]
        assert sum(paid) == pytest.approx(seed["costs_paid"], rel=1e-9)


def test_differences_to_the_base_are_active_returns_per_year(resumed: tuple[Path, dict[str, Any]]) -> None:
    out, document = resumed
    own = curves(out)
    returns = {name: curve[1:] / curve[:-1] - 1 for name, curve in own.items()}
    active = returns["champion"] - returns[document["verdict"]["edge"]["reference"]]
    year = bars_per_year(small_panel().times)
    assert document["difference"]["value"] == pytest.approx(active.mean() * year, abs=1e-5)
    ends = [fold["test"][1] for fold in document["folds"]]
    times = [row["time"] for row in csv.DictReader((out / "curves.csv").read_text().splitlines())]
    parts = np.split(active, [times.index(ends[0]) + 1])
    assert [fold["difference"]["value"] for fold in document["folds"]] == pytest.approx(
        [part.mean() * year for part in parts], abs=1e-5
    )
    for difference in (document["difference"], *(fold["difference"] for fold in document["folds"])):
        assert difference["low"] < difference["value"] < difference["high"]


def test_verdict_describes_out_of_sample_results_and_is_printed_by_promote(
    resumed: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    out, document = resumed
    assert read_verdict(out).to_dict() == document["verdict"]
    assert all("on test" not in reason and "on validation" not in reason for reason in document["verdict"]["reasons"])
    assert command(["promote", str(out)]) == int(not document["verdict"]["promoted"])
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith(("Not promoted. Mean active return out of sample", "Promoted. Mean active return out of"))
    assert "on test" not in line


def test_resume_with_another_plan_is_refused(resumed: tuple[Path, dict[str, Any]], folder: Path) -> None:
    out = resumed[0]
    with pytest.raises(RunError, match="already holds a walk-forward; add --resume"):
        run_walkforward(CONFIG, out, folds=FOLDS, seeds=SEEDS)
    with pytest.raises(RunError, match="started with other folds"):
        run_walkforward(CONFIG, out, folds=3, seeds=SEEDS, resume=True)
    with pytest.raises(RunError, match="started with other config"):
        run_walkforward(small_config(generations=2), out, folds=FOLDS, seeds=SEEDS, resume=True)
    with pytest.raises(RunError, match="no walk-forward to resume"):
        run_walkforward(CONFIG, folder / "none", resume=True)
    with pytest.raises(DataError, match="cannot be cut into 500 tests"):
        run_walkforward(CONFIG, folder / "none", folds=500)
    with pytest.raises(InputError, match="--seeds must be at least 1, got 0"):
        run_walkforward(CONFIG, folder / "none", seeds=0)


def test_walkforward_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "walk.toml"
    file.write_text(config_text(CONFIG))
    arguments = ["walkforward", str(file), "--out", str(folder / "walk"), "--folds", "2", "--seeds", "2", "--resume"]
    assert command([*arguments, "--device", "cpu"]) == 0
    printed = capsys.readouterr()
    assert "Sharpe ratio of each fold and seed, out of sample" in printed.out
    assert "Promotion gate" in printed.out
    assert command([*arguments, "--device", "cpu", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["runs"]
    assert printed.err == ""
