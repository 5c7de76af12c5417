"""Configs saved by earlier versions keep their behaviour and their hash."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from finrl_pod.settings.algorithm_configs import SACConfig, SHACConfig
from finrl_pod.settings.earlier_versions import EARLIER_VALUES
from finrl_pod.settings.run import RunConfig, as_saved, parse_saved


def saved_by_an_earlier_version() -> dict[str, Any]:
    values = dataclasses.asdict(RunConfig())
    for section, names in EARLIER_VALUES.items():
        for name in names:
            del values[section][name]
        if not values[section]:
            del values[section]
    return values


def test_a_saved_config_keeps_its_values_and_its_hash() -> None:
    values = saved_by_an_earlier_version()
    config = parse_saved(values, "config.json")
    for section, names in EARLIER_VALUES.items():
        for name, value in names.items():
            assert getattr(getattr(config, section), name) == value
    assert config.sha256 == hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    assert config.sha256 != RunConfig().sha256


def test_cohorts_of_a_saved_run_keep_their_hash() -> None:
    values = dataclasses.asdict(RunConfig(cohorts=(SACConfig(), SHACConfig(hidden=(8,)))))
    for name in EARLIER_VALUES["agent"]:
        for agent in (values["agent"], *values["cohorts"]):
            del agent[name]
    config = parse_saved(values, "config.json")
    assert config.sha256 == RunConfig(cohorts=(SACConfig(), SHACConfig(hidden=(8,)))).sha256
    assert all(name not in json.dumps(values) for name in EARLIER_VALUES["agent"])
    with_encoder = RunConfig(cohorts=(SACConfig(encoder="gru"), SHACConfig(hidden=(8,))))
    assert with_encoder.sha256 != config.sha256


def test_a_config_without_the_new_settings_resumes_a_saved_run() -> None:
    values = saved_by_an_earlier_version()
    assert as_saved(RunConfig(), values) == parse_saved(values, "config.json")
    changed = RunConfig(tournament=dataclasses.replace(RunConfig().tournament, max_root_share=0.5))
    assert as_saved(changed, values).tournament.max_root_share == 0.5, "set by the user"
    assert as_saved(RunConfig(), dataclasses.asdict(RunConfig())) == RunConfig()


def test_every_setting_changes_the_hash() -> None:
    one = RunConfig()
    other = dataclasses.replace(one, tournament=dataclasses.replace(one.tournament, max_root_share=0.5))
    assert one.sha256 != other.sha256
