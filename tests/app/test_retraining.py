"""`finrl-pod retrain`: newer prices, moved splits, and the hand-over of promoted champions only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from finrl_pod_app.cli import main
from finrl_pod_app.evaluation import promotion
from finrl_pod_app.training.registry import moved_splits, without_missing_symbols

from finrl_pod.data.splits import make_splits
from finrl_pod.data.store import Store
from finrl_pod.promotion.gate import PromotionEvidence, apply_gate
from finrl_pod.promotion.verdict import Verdict
from finrl_pod.registry.agent_registry import AgentRegistry
from finrl_pod.registry.handover import last_handover, roll_back
from finrl_pod.settings.run import DataConfig, GateConfig, GroupConfig, MandateConfig, RunConfig, SplitConfig
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


def test_a_symbol_that_disappeared_or_joined_stops_no_training(
    folder: Path, call: Callable[..., tuple[int, dict[str, Any], str]]
) -> None:
    write_prices(folder, 480)
    table = pd.read_csv(folder / "prices.csv")
    first, second = table.columns[1:3]
    table.rename(columns={first: "NEW"}).assign(NEW=lambda rows: rows["NEW"].round(1)).to_csv(
        folder / "prices.csv", index=False
    )
    with (folder / "mine.toml").open("a") as config:
        config.write(f'[mandate]\nmax_group_weight = 0.9\n[groups]\nbanks = ["{first}", "OLD"]\nold = ["OLDER"]\n')
    code, document, error = call("--out", folder / "run")
    assert (code, document["dropped"]) == (1, ["OLD", "OLDER"]), error
    update = document["update"]
    assert (update["added"], update["joined"], update["ended"]) == (40, ["NEW"], [first])
    assert document["data"]["last"] == str(small_panel().times[479])[:10]
    assert "left out of data.symbols and groups, as 'mine' lacks them: OLD, OLDER" in error
    assert second in Store().show("mine").symbols


def test_settings_name_no_symbol_that_the_prices_lack() -> None:
    groups = (GroupConfig("banks", ("A", "Z")), GroupConfig("gone", ("Z",)))
    config = RunConfig(data=DataConfig("mine", ("A", "B", "Y")), mandate=MandateConfig(groups=groups))
    config, dropped = without_missing_symbols(config, ("A", "B", "C"))
    assert (config.data.symbols, dropped) == (("A", "B"), ["Y", "Z"])
    assert config.mandate.groups == (GroupConfig("banks", ("A",)),)
    assert without_missing_symbols(config, ("A", "B"))[1] == []
