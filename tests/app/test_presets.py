"""Presets and their commented TOML text."""

from __future__ import annotations

import dataclasses
import re
import shlex
import tomllib
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from finrl_pod_app.api.markets import make_market
from finrl_pod_app.cli.main import run as command
from finrl_pod_app.prices.stored_prices import with_stored_splits
from finrl_pod_app.setup.presets import (
    CHANGED_FIRST,
    PRESETS,
    config_text,
    for_panel,
    preset,
    preset_text,
    propose_splits,
    short_config_text,
    write_preset,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.data.sources.files import read_frame
from finrl_pod.data.splits import make_splits
from finrl_pod.data.store import Store
from finrl_pod.errors import ConfigError, DataError
from finrl_pod.settings.algorithm_registry import ALGORITHMS
from finrl_pod.settings.constraints import describe_settings
from finrl_pod.settings.run import (
    EnvironmentConfig,
    FeatureConfig,
    GroupConfig,
    MandateConfig,
    PPOConfig,
    RunConfig,
    SplitConfig,
    TableConfig,
    TournamentConfig,
    load,
    parse,
)

SECTIONS = [field.name for field in dataclasses.fields(RunConfig) if field.name not in ("seed", "threads", "cohorts")]


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("full", [False, True])
def test_preset_text_parses_to_the_preset(name: str, full: bool) -> None:
    assert parse(tomllib.loads(preset_text(name, full=full))) == PRESETS[name]
    assert parse(tomllib.loads(preset_text(name, "us74", full=full))) == preset(name, "us74")


def test_the_short_text_begins_with_the_settings_that_users_change() -> None:
    text = preset_text("laptop")
    first, _, rest = text.partition("# ---------- rarely changed ----------")
    names = [name for section in CHANGED_FIRST.values() for name in section]
    assert all(re.search(rf"^{name} = .*", first, re.MULTILINE) for name in names)
    assert [line for line in rest.splitlines() if line.startswith("[")] == ["[features]", "[agent]"]
    settings = [line for line in text.splitlines() if " = " in line.split("#")[0]]
    assert len(settings) < 40 < len(preset_text("laptop", full=True).splitlines())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_short_text_of_any_agent_and_cohort_is_read_back(name: str) -> None:
    agent = ALGORITHMS[name].config_class(algorithm=name)
    changed = dataclasses.replace(agent, hidden=(7, 7, 7))
    for config in (RunConfig(agent=agent), RunConfig(agent=PPOConfig(), cohorts=(agent, changed), threads=2)):
        assert parse(tomllib.loads(short_config_text(config))) == config


@pytest.mark.parametrize("name", PRESETS)
def test_every_setting_has_a_comment(name: str) -> None:
    lines = preset_text(name).splitlines()
    settings = [i for i, line in enumerate(lines) if " = " in line.split("#")[0]]
    assert settings
    assert all("  # " in lines[i] or lines[i - 1].startswith("# ") for i in settings)


def test_every_field_is_declared_with_a_comment() -> None:
    records = [RunConfig, *(type(getattr(RunConfig(), name)) for name in SECTIONS)]
    records += [info.config_class for info in ALGORITHMS.values()]
    for record in records:
        declared = describe_settings(record)
        assert list(declared) == [field.name for field in dataclasses.fields(record)]
        assert all(item.comment for item in declared.values())
    text = config_text(RunConfig())
    assert all(f"\n[{name}]\n" in text for name in SECTIONS)


def test_choices_are_listed() -> None:
    assert 'fill = "next"' in preset_text("laptop", full=True)
    assert "(next | same_close)" in preset_text("laptop", full=True)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)  # building the validator takes most of the time
@given(
    seed=st.integers(0, 2**62),
    rate=st.floats(allow_nan=False, allow_infinity=False),
    names=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x7f")), min_size=1, max_size=8),
    short=st.booleans(),
    hidden=st.lists(st.integers(1, 10**6), max_size=6),
)
def test_any_config_is_unchanged_after_writing_and_parsing(
    seed: int, rate: float, names: list[str], short: bool, hidden: list[int]
) -> None:
    config = RunConfig(
        seed=seed,
        features=FeatureConfig(tuple(names)),
        environment=EnvironmentConfig(short=short, cost_bps=rate),
        agent=PPOConfig(hidden=tuple(hidden), learning_rate=rate),
        mandate=MandateConfig(groups=tuple(GroupConfig(name, tuple(names)) for name in dict.fromkeys(names))),
        tournament=TournamentConfig(seconds=rate),
    )
    assert parse(tomllib.loads(config_text(config))) == config
    assert parse(tomllib.loads(short_config_text(config))) == config


def test_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no preset 'lapto'.*laptop"):
        preset("lapto")
    with pytest.raises(ConfigError, match=r"no preset 'xyz'.*laptop, gpu, quick, minutes"):
        preset("xyz")


def test_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    write_preset("quick", path)
    assert load(path) == PRESETS["quick"]
    path.write_text("user file")
    with pytest.raises(ConfigError, match="already exists"):
        write_preset("laptop", path)
    assert path.read_text() == "user file"


def test_missing_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write .*: there is no folder .*no; create it first"):
        write_preset("quick", tmp_path / "no" / "config.toml")


def test_the_head_names_the_command_that_init_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, options in (("my config", []), ("own", ["--env", "env.py:Env"])):
        path = tmp_path / f"{name}.toml"
        assert command(["init", str(path), *options]) == 0
        printed = capsys.readouterr().out.strip().partition("run it with ")[2]
        assert printed == f"finrl-pod tournament {shlex.quote(str(path))} --out {shlex.quote(f'runs/{name}')}"
        assert f"# {printed}\n" in path.read_text()


def test_splits_of_own_prices_are_trading_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path))
    for first in ("2012-01-02", "1989-01-02"):  # proposed splits, and the default ones, which have holidays
        days = pd.bdate_range(first, "2023-12-29")
        prices = pd.DataFrame({"A": np.linspace(1, 2, len(days)), "B": np.linspace(2, 1, len(days))}, index=days)
        panel = read_frame(prices, name="mine")
        Store().save(panel)
        found = preset("laptop", "mine").splits
        dates = [day for span in (found.train, found.validation, found.test) for day in span]
        assert set(dates) <= set(days.strftime("%Y-%m-%d"))
        usual = propose_splits(days[0].date(), days[-1].date())
        assert make_splits(panel.times, found).dates() == make_splits(panel.times, usual).dates()
        assert set(dates) != {day for span in (usual.train, usual.validation, usual.test) for day in span}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_on_us74_charge_its_spreads(name: str) -> None:
    config = preset(name, "us74")
    assert parse(tomllib.loads(preset_text(name, "us74"))) == config
    assert (config.data.name, config.splits.test) == ("us74", ("2019-10-01", "2023-09-26"))
    rules = config.environment
    assert (rules.half_spread, rules.half_spread_bps, rules.cost_bps) == ("from data", 0.0, 5.0)
    assert config.tournament == PRESETS[name].tournament
    assert preset(name, "sample") == PRESETS[name]


def test_config_with_only_a_built_in_panel_has_its_splits() -> None:
    assert parse({"data": {"name": "us74"}}).splits == preset("laptop", "us74").splits
    assert parse({"data": {"name": "us74"}, "splits": {"embargo": 9}}).splits == dataclasses.replace(
        preset("laptop", "us74").splits, embargo=9
    )
    assert parse({"data": {"name": "sample"}}) == parse({}) == RunConfig()


def test_preset_on_an_unknown_panel_is_refused() -> None:
    with pytest.raises(DataError, match="no panel 'unknown'"):
        preset("quick", "unknown")


def test_a_config_without_splits_has_those_of_init_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path))
    days = pd.bdate_range("2017-01-03", "2022-10-03")
    closes = 50 + np.random.default_rng(1).normal(0, 1, (len(days), 2))
    panel = read_frame(pd.DataFrame(closes, days, ["A", "B"]), name="mine")
    Store().save(panel, {})
    file = tmp_path / "c.toml"
    file.write_text('[data]\nname = "mine"\n[features]\nnames = ["return_5"]\n')
    config = load(file)
    expected = preset("laptop", "mine").splits
    assert with_stored_splits(config).splits == expected
    assert make_market(panel, file).config.splits == expected
    assert command(["train", str(file), "--dry-run"]) == 0
    stated = dataclasses.replace(config, splits=dataclasses.replace(config.splits, train=("2017-01-03", "2018-01-03")))
    assert with_stored_splits(stated) == stated


def test_default_splits_if_covered() -> None:
    assert propose_splits(date(1990, 1, 2), date(2022, 12, 28)) == SplitConfig()


def test_proposed_splits_are_ordered_without_overlap() -> None:
    first, last = date(2005, 3, 1), date(2009, 3, 1)
    splits = propose_splits(first, last)
    days = [date.fromisoformat(day) for span in (splits.train, splits.validation, splits.test) for day in span]
    assert days[0] == first
    assert days[-1] == last
    assert days == sorted(set(days))
    for end, begin in ((days[1], days[2]), (days[3], days[4])):
        assert (begin - end).days == 1
    assert (days[1] - first).days == pytest.approx(0.7 * (last - first).days, abs=1)


def test_tables_stay_on_another_panel() -> None:
    tables = (TableConfig("macro.csv", 45.0), TableConfig("firm.csv"))
    config = RunConfig(features=FeatureConfig(("return_5", "macro.growth_9999"), tables))
    assert for_panel(config, Store().show("sample")).features == config.features
    text = config_text(config)
    assert 'tables = [{file = "macro.csv", max_age_days = 45.0}, {file = "firm.csv", max_age_days = 0.0}]' in text
    assert parse(tomllib.loads(text)).features == config.features
