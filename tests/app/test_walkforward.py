"""Walk-forward: what is kept, that it resumes, and that its curve is one account led by its champions."""

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
from finrl_pod_app.services import progress_file
from finrl_pod_app.services.presets import config_text
from finrl_pod_app.services.walkforward import fold_config, plan, run_walkforward

from finrl_pod.data.splits import make_splits
from finrl_pod.errors import DataError, InputError, Interrupted, RunError
from finrl_pod.evaluate.metrics import bars_per_year, sharpe
from finrl_pod.promotion.gate import read_verdict
from finrl_pod.promotion.trial_registry import FILE, TrialRegistry
from finrl_pod.tournament.progress import Progress
from tests.app.small_run import isolated_folders, small_config, small_panel

CONFIG = small_config(generations=1, pods=2, champion=1)
FOLDS, SEEDS = 2, 2


@pytest.fixture(scope="module", autouse=True)
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store and a register of this module's own."""
    with isolated_folders(tmp_path_factory.mktemp("walking")) as folder:
        yield folder


@pytest.fixture(scope="module")
def walked(room: Path) -> tuple[Path, dict[str, Any]]:
    """A walk-forward that was stopped in its third run and gone on with."""
    out = room / "walk"

    def stop(progress: Progress) -> None:
        if progress.stage.startswith("fold 2 of 2, seed 1 of 2"):
            process = progress_file.process_of(progress_file.read(out / "fold-02" / "seed-5" / progress_file.FILE))
            assert process is not None
            assert process.pid == os.getpid()  # whoever looks on sees which run is at work
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=r"kept in .* --resume"):
        run_walkforward(CONFIG, out, folds=FOLDS, seeds=SEEDS, device="cpu", progress=stop)
    assert not (out / "walkforward.json").exists()
    assert list(out.rglob(progress_file.FILE)) == []
    return out, run_walkforward(CONFIG, out, folds=FOLDS, seeds=SEEDS, resume=True, device="cpu")


def curves(out: Path) -> dict[str, np.ndarray]:
    rows = list(csv.DictReader((out / "curves.csv").read_text().splitlines()))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0] if name != "time"}


def test_resumed_it_equals_one_that_nobody_stopped(walked: tuple[Path, dict[str, Any]], room: Path) -> None:
    whole = run_walkforward(CONFIG, room / "whole", folds=FOLDS, seeds=SEEDS, device="cpu")
    assert whole == walked[1]
    assert json.loads((walked[0] / "walkforward.json").read_text()) == walked[1]
    # To the letter the same: nothing was tried anew, nobody looked again.
    assert TrialRegistry(room / "home" / FILE).counts(small_panel().sha256).raw == FOLDS * SEEDS * 2
    assert walked[1]["verdict"]["looks"] == 1


def test_the_plan_is_that_of_the_configs_splits() -> None:
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


def test_every_fold_and_seed_is_kept(walked: tuple[Path, dict[str, Any]]) -> None:
    out, document = walked
    assert [(row["fold"], row["seed"]) for row in document["runs"]] == [(1, 5), (1, 6), (2, 5), (2, 6)]
    for row in document["runs"]:
        folder = out / f"fold-{row['fold']:02d}" / f"seed-{row['seed']}"
        assert json.loads((folder / "state.json").read_text())["generation"] == 0
        assert (folder / "returns" / "0000.npy").exists()
    assert [fold["fold"] for fold in document["folds"]] == [1, 2]
    assert len(document["seeds"]) == SEEDS
    assert document["seeds_together"]["interval"]["low"] <= document["seeds_together"]["interquartile_mean"]
    assert 0 <= document["seeds_together"]["improvement_over_equal_weight"]["value"] <= 1
    assert (out / "report.html").stat().st_size > 100_000


def test_the_curve_is_one_account(walked: tuple[Path, dict[str, Any]]) -> None:
    out, document = walked
    own = curves(out)
    splits = make_splits(small_panel().times, CONFIG.splits)
    assert len(own["champion"]) == splits.test.last - splits.validation.first + 1
    year = bars_per_year(small_panel().times)
    assert sharpe(own["champion"], year) == pytest.approx(document["strategies"]["champion"]["sharpe"], abs=1e-3)
    for seed in document["seeds"]:
        assert sharpe(own[f"champion of seed {seed['seed']}"], year) == pytest.approx(seed["sharpe"], abs=1e-3)
    # A fold's figure is that of its part of the curve.
    first = document["folds"][1]["test"][0]
    times = [row["time"] for row in csv.DictReader((out / "curves.csv").read_text().splitlines())]
    part = own["champion of seed 5"][times.index(first) :]
    (row,) = [row for row in document["runs"] if (row["fold"], row["seed"]) == (2, 5)]
    assert sharpe(part, year) == pytest.approx(row["sharpe"], abs=2e-3)
    # Where two folds meet, nothing is paid twice.
    for seed in document["seeds"]:
        paid = [row["costs_paid"] for row in document["runs"] if row["seed"] == seed["seed"]]
        assert sum(paid) == pytest.approx(seed["costs_paid"], rel=1e-9)


def test_the_verdict_speaks_of_it_and_can_be_asked_for(
    walked: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    out, document = walked
    assert read_verdict(out).plain() == document["verdict"]
    assert all("on test" not in reason and "on validation" not in reason for reason in document["verdict"]["reasons"])
    assert command(["promote", str(out)]) == int(not document["verdict"]["promoted"])
    assert "Deflated Sharpe ratio over equal weight out of sample" in " ".join(capsys.readouterr().out.split())


def test_another_plan_is_not_gone_on_with(walked: tuple[Path, dict[str, Any]], room: Path) -> None:
    out = walked[0]
    with pytest.raises(RunError, match="already holds a walk-forward; add --resume"):
        run_walkforward(CONFIG, out, folds=FOLDS, seeds=SEEDS)
    with pytest.raises(RunError, match="started with other folds"):
        run_walkforward(CONFIG, out, folds=3, seeds=SEEDS, resume=True)
    with pytest.raises(RunError, match="started with other config"):
        run_walkforward(small_config(generations=2), out, folds=FOLDS, seeds=SEEDS, resume=True)
    with pytest.raises(RunError, match="no walk-forward to resume"):
        run_walkforward(CONFIG, room / "none", resume=True)
    with pytest.raises(DataError, match="cannot be cut into 500 tests"):
        run_walkforward(CONFIG, room / "none", folds=500)
    with pytest.raises(InputError, match="--seeds must be at least 1, got 0"):
        run_walkforward(CONFIG, room / "none", seeds=0)


def test_through_the_command(room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = room / "walk.toml"
    file.write_text(config_text(CONFIG))
    arguments = ["walkforward", str(file), "--out", str(room / "walk"), "--folds", "2", "--seeds", "2", "--resume"]
    assert command([*arguments, "--device", "cpu"]) == 0
    shown = capsys.readouterr()
    assert "Sharpe ratio of each fold and seed, out of sample" in shown.out
    assert "Promotion gate" in shown.out
    assert command([*arguments, "--device", "cpu", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["runs"]
    assert shown.err == ""
