"""Presets and their commented TOML text."""

from __future__ import annotations

import dataclasses
import tomllib
from datetime import date
from pathlib import Path

import pytest
from finrl_pod_app.services.presets import PRESETS, config_text, preset, preset_text, propose_splits, write_preset
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.errors import ConfigError, DataError
from finrl_pod.settings.algorithm_registry import ALGORITHMS
from finrl_pod.settings.constraints import describe_settings
from finrl_pod.settings.run import (
    EnvironmentConfig,
    FeatureConfig,
    PPOConfig,
    RunConfig,
    SplitConfig,
    TournamentConfig,
    load,
    parse,
)

SECTIONS = [field.name for field in dataclasses.fields(RunConfig) if field.name not in ("seed", "threads", "cohorts")]


@pytest.mark.parametrize("name", PRESETS)
def test_preset_text_parses_to_the_preset(name: str) -> None:
    assert parse(tomllib.loads(preset_text(name))) == PRESETS[name]


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
    assert 'fill = "next"' in preset_text("laptop")
    assert "(next | same_close)" in preset_text("laptop")


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
        tournament=TournamentConfig(seconds=rate),
    )
    assert parse(tomllib.loads(config_text(config))) == config


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
    with pytest.raises(ConfigError, match=r"cannot write .*No such file"):
        write_preset("quick", tmp_path / "no" / "config.toml")


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
