"""`finrl-pod retrain`: newer prices, moved splits, and the hand-over of promoted champions only."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from finrl_pod_app.cli import main
from finrl_pod_app.evaluation import promotion
from finrl_pod_app.prices import stored_prices as data_refresh
from finrl_pod_app.prices.stored_prices import refresh_panel
from finrl_pod_app.training.registry import moved_splits

from finrl_pod.data.splits import make_splits
from finrl_pod.data.store import Store
from finrl_pod.errors import DataError
from finrl_pod.promotion.gate import PromotionEvidence, apply_gate
from finrl_pod.promotion.verdict import Verdict
from finrl_pod.registry.agent_registry import AgentRegistry
from finrl_pod.registry.handover import last_handover, roll_back
from finrl_pod.settings.run import GateConfig, SplitConfig
from finrl_pod.types import Panel
from tests.app.small_run import small_panel

pytestmark = pytest.mark.slow

CONFIG = """
seed = 5
threads = 1
[data]
name = "mine"
[splits]
train = ["2020-01-01", "2020-09-30"]
validation = ["2020-10-01", "2020-12-31"]
test = ["2021-01-01", "2021-02-28"]
embargo = 2
[features]
names = ["return_1", "return_5"]
[environment]
window = 20
envs = 8
group = 4
[agent]
hidden = [4, 4]
horizon = 8
minibatches = 2
[tournament]
pods = 2
generations = 1
samples_per_generation = 64
leaderboard = 2
champion = 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a config and a stored panel that was imported from prices.csv there."""
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))
    (tmp_path / "mine.toml").write_text(CONFIG)
    write_prices(tmp_path, 440)
    assert main.run(["data", "import", str(tmp_path / "prices.csv"), "--name", "mine", "--json"]) == 0
    return tmp_path


def write_prices(folder: Path, bars: int) -> None:
    """The first bars of the small panel as a wide file of closes."""
    panel = small_panel()
    table = pd.DataFrame(panel.close[:bars], columns=list(panel.symbols))
    table.insert(0, "time", panel.times[:bars].astype("datetime64[D]").astype(str))
    table.to_csv(folder / "prices.csv", index=False)


@pytest.fixture
def call(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any], str]]:
    """Run `finrl-pod retrain --json` on the config; returns exit code, document and standard error."""

    def retrain(*options: str | Path) -> tuple[int, dict[str, Any], str]:
        capsys.readouterr()
        code = main.run(["retrain", str(folder / "mine.toml"), "--json", *map(str, options)])
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if printed.out else {}, printed.err

    return retrain


def promote_all(evidence: PromotionEvidence, gate: GateConfig) -> Verdict:
    """The gate's verdict with every rule passed."""
    verdict = apply_gate(evidence, gate)
    rules = tuple(rule.model_copy(update={"passed": True}) for rule in verdict.rules)
    return verdict.model_copy(update={"promoted": True, "rules": rules})


def test_promoted_champions_are_handed_over_and_refused_ones_change_nothing(
    folder: Path, call: Callable[..., tuple[int, dict[str, Any], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(promotion, "apply_gate", promote_all)
        code, first, error = call("--out", folder / "one")
        assert (code, first["handed_over"], first["strategy"], first["previous"]) == (0, True, "mine", None), error
        assert first["splits"]["test"][1] == first["data"]["last"] == str(small_panel().times[439])[:10]
        write_prices(folder, 480)
        code, second, error = call("--out", folder / "two")
        assert (code, second["previous"]) == (0, first["champion"]), error
        assert second["data"]["last"] == str(small_panel().times[479])[:10]
        assert second["data"]["sha256"] != first["data"]["sha256"]
        # A champion that was rolled back does not return by itself: resuming its run evaluates it again.
        registry = AgentRegistry(str(folder / "home" / "registry"))
        roll_back(registry, "mine")
        code, again, error = call("--out", folder / "two", "--resume")
        assert (code, again["handed_over"], again["champion"]) == (1, False, first["champion"]), error
        assert again["reasons"] == ["strategy 'mine' was rolled back from these agents before"]
    before = sorted((folder / "home" / "registry").rglob("*"))
    write_prices(folder, 500)
    code, refused, error = call("--out", folder / "three")
    assert (code, refused["promoted"], refused["handed_over"]) == (1, False, False), error
    assert refused["reasons"]
    assert refused["champion"] == first["champion"]
    assert sorted((folder / "home" / "registry").rglob("*")) == before


def test_what_would_fail_later_is_refused_before_the_training(
    folder: Path, call: Callable[..., tuple[int, dict[str, Any], str]]
) -> None:
    for options, message in (
        (["--strategy", "a b"], "a strategy name has letters"),
        (["--registry", "/proc/registry"], "cannot write to the registry /proc/registry"),
        (["--registry", "ftp://host/x"], "a registry is a folder or an address"),
    ):
        code, _, error = call("--out", folder / "run", *options)
        assert (code, error.count("\n")) == (2, 1)
        assert message in error
    (folder / "prices.csv").unlink()
    code, _, error = call("--out", folder / "run")
    assert (code, error.count("\n"), "prices.csv" in error) == (2, 1, True)
    assert not (folder / "run").exists()
    assert last_handover(AgentRegistry(str(folder / "home" / "registry")), "mine") is None


def test_splits_move_to_the_end_and_keep_their_length() -> None:
    panel = small_panel()
    splits = SplitConfig(("2020-01-01", "2020-09-30"), ("2020-10-01", "2020-12-31"), ("2021-01-01", "2021-02-28"), 2)
    before = make_splits(panel.times, splits)
    moved = moved_splits(splits, panel)
    after = make_splits(panel.times, moved)
    assert (len(after.validation), len(after.test)) == (len(before.validation), len(before.test))
    assert after.test.last == len(panel.times) - 1
    assert after.validation.last + splits.embargo + 1 == after.test.first
    assert after.train.last + splits.embargo + 1 == after.validation.first
    assert after.train.first == before.train.first
    assert moved_splits(moved, panel) == moved


def test_panel_is_fetched_again_up_to_yesterday(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []

    class Source:
        def fetch(self, symbols: tuple[str, ...], start: pd.Timestamp, end: pd.Timestamp, bar: str) -> Panel:
            fetched.append((symbols, str(start.date()), str(end.date()), bar))
            return dataclasses.replace(small_panel(), benchmark=None)

    monkeypatch.setattr(data_refresh, "open_source", lambda name: {"yfinance": Source()}[name])
    symbols = list(small_panel().symbols)
    query = {"source": "yfinance", "symbols": symbols, "start": "2020-01-01", "end": "2021-01-29", "bar": "1d"}
    stored = dataclasses.replace(small_panel("fetched"), benchmark=None)
    Store().save(stored, query)
    manifest = refresh_panel("fetched", date(2021, 12, 2))
    assert fetched == [(tuple(symbols), "2020-01-01", "2021-12-01", "1d")]
    assert manifest.query["end"] == "2021-12-01"
    assert Store().show("fetched").query == manifest.query


def test_prices_that_lack_something_are_refused_and_the_stored_ones_kept(folder: Path) -> None:
    before = Store().load("mine").sha256
    write_prices(folder, 400)
    with pytest.raises(DataError, match=r"end on .*, before the end of the stored prices"):
        refresh_panel("mine")
    table = pd.read_csv(folder / "prices.csv")
    table.drop(columns=table.columns[-1]).to_csv(folder / "prices.csv", index=False)
    with pytest.raises(DataError, match="the newer prices of 'mine' lack"):
        refresh_panel("mine")
    assert Store().load("mine").sha256 == before
    with pytest.raises(DataError, match="panel 'sample' is built in"):
        refresh_panel("sample")
    Store().save(dataclasses.replace(small_panel("unknown"), close=np.round(small_panel().close, 2)))
    with pytest.raises(DataError, match="does not say where it came from"):
        refresh_panel("unknown")
