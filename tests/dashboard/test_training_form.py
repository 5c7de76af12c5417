"""The training form builds the config that the command line reads."""

from __future__ import annotations

import dataclasses
import tomllib

import pytest
from finrl_pod_app.dashboard.pages.train import build_config, merge, number_field
from finrl_pod_app.setup.presets import config_text

from finrl_pod.errors import ConfigError
from finrl_pod.settings.algorithm_registry import ALGORITHMS
from finrl_pod.settings.run import RunConfig, describe_setting, parse


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_toml_round_trip_of_every_algorithm(algorithm: str) -> None:
    config = build_config({"seed": 3, "agent": {"algorithm": algorithm}, "tournament": {"pods": 2}})
    assert config.agent.algorithm == algorithm
    assert parse(tomllib.loads(config_text(config))) == config


def test_empty_form_gives_the_default() -> None:
    assert build_config({}) == RunConfig()
    assert build_config(dataclasses.asdict(RunConfig())) == RunConfig()


def test_further_settings_override_the_form() -> None:
    choices = {"environment": {"cost_bps": 5.0, "cash": 1000.0}, "features": {"names": ["return_1", "return_5"]}}
    config = build_config(choices, '[environment]\ncost_bps = 7.0\n[features]\nnames = ["return_1"]')
    assert (config.environment.cost_bps, config.environment.cash) == (7.0, 1000.0)
    assert config.features.names == ("return_1",)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("pods = ", "the further settings"),
        ("[tournament]\npod = 3", "unknown key tournament.pod; did you mean pods"),
        ("[environment]\ncost_bps = 'high'", "environment.cost_bps"),
        ("[agent]\nclip_range = 0.1", "ddpg has no such setting"),
        ("environment = 3", "environment"),
        ("[environment]\ncost_bps = -1.0", "environment.cost_bps is out of its range, got -1.0"),
        ("[mandate]\ntilt = -1.0", "mandate.tilt is out of its range, got -1.0"),
        ("[tournament]\npods = 0", "tournament.pods is out of its range, got 0"),
    ],
)
def test_errors_name_the_setting(more: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config({"agent": {"algorithm": "ddpg"}}, more)


def test_merge_changes_neither_argument() -> None:
    values, over = {"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 9}, "d": {"e": 1}}
    assert merge(values, over) == {"a": {"b": 9, "c": 2}, "d": {"e": 1}}
    assert values == {"a": {"b": 1, "c": 2}, "d": 3}


def test_number_fields_follow_the_declarations() -> None:
    declared = describe_setting("environment.cost_bps")
    field = number_field("environment.cost_bps")
    assert field == {"label": "Cost (bps)", "min_value": 0.0, "max_value": 10_000.0, "help": declared.comment}
    assert number_field("tournament.pods")["min_value"] == 1
    assert number_field("seed")["max_value"] == 2**53 - 1  # what a browser can hold
    with pytest.raises(KeyError):
        number_field("environment.unknown")
