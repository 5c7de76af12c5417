"""`finrl-pod features`: its figures, its period, and its refusals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from finrl_pod_app.cli.main import run
from finrl_pod_app.evaluation.feature_analysis import analyse_features

from finrl_pod.data import features
from finrl_pod.data.panel import first_bars
from finrl_pod.data.store import Store
from finrl_pod.errors import InputError
from finrl_pod.settings.run import load
from tests.data.panels import random_panel


def test_features_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["features", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["features"] == list(features.names())
    assert run(["features", "list", "--data", "sample"]) == 0
    assert "sector_neutral" not in capsys.readouterr().out


@pytest.mark.slow
def test_training_bars_of_the_sample_are_analysed(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["features", "analyse", "return_1", "momentum_252_21", "--horizons", "1,21"]
    assert run([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["split"], document["period"][0]) == ("train", "1990-01-02")
    assert document["period"][1] < "2016"
    reversal, momentum = document["features"]
    assert reversal["horizons"][0]["high"] < 0 < momentum["horizons"][0]["low"]
    assert reversal["top_turnover"] > 0.5 > momentum["top_turnover"]
    assert run(arguments) == 0
    shown = capsys.readouterr().out
    assert "momentum_252_21" in shown
    assert "90% interval" in shown
    assert "of 4 intervals of the IC exclude" in shown
    assert "0; about 0.4 would by chance" in shown


@pytest.mark.slow
def test_imported_prices_are_split_as_init_splits_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store().save(dataclasses.replace(random_panel(bars=1200), name="split_mine"))
    periods = {}
    for split in ("train", "validation", "test", "all"):
        assert run(["features", "analyse", "return_1", "--data", "split_mine", "--split", split, "--json"]) == 0
        periods[split] = json.loads(capsys.readouterr().out)["period"]
    assert run(["init", "--data", "split_mine", str(tmp_path / "mine.toml")]) == 0
    splits = load(tmp_path / "mine.toml").splits
    assert periods["train"][0] == periods["all"][0] >= splits.train[0]
    assert periods["train"][1] <= splits.train[1] < periods["validation"][0] <= periods["validation"][1]
    assert periods["validation"][1] < splits.test[0] <= periods["test"][0]
    assert periods["test"][1] == periods["all"][1]


def test_few_assets_have_as_many_quantiles_and_one_has_no_rank() -> None:
    for assets in (1, 3):
        Store().save(dataclasses.replace(first_bars(random_panel(), 400, assets), name=f"of_{assets}"))
    document = analyse_features(["return_1"], data="of_3", split="all", horizons=[1])
    assert len(document["features"][0]["horizons"][0]["quantiles"]) == document["quantiles"] == 3
    with pytest.raises(InputError, match="a feature ranks assets: at least 2 are needed, the prices have 1"):
        analyse_features(["return_1"], data="of_1", split="all", horizons=[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "unknown feature 'nonsense'"),
        (["return_1", "--horizons", "one"], "--horizons takes numbers"),
        (["return_1", "--split", "dev"], "--split must be"),
        (["breadth_50"], "the same value for all assets"),
    ],
)
def test_senseless_requests_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["features", "analyse", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
