"""The training form: fields derived from the declarations of the settings, and the config built from its values."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

from finrl_pod.errors import ConfigError
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import RunConfig, SplitConfig, describe_setting, parse

MAX_NUMBER = 2**53 - 1  # the largest integer of a browser
TRAIN, VALIDATION = 0.70, 0.15  # shares of the days if the default splits do not fit the data; the rest is the test


def setting_label(path: str) -> str:
    """The label of a setting by its dotted name: "environment.cost_bps" -> "Cost (bps)"."""
    return path.rpartition(".")[2].replace("_bps", " (bps)").replace("_", " ").capitalize()


def number_field(path: str) -> dict[str, Any]:
    """Label, help and bounds of a number's input field, as keyword arguments of `st.number_input`.

    All numbers are int or float as declared. Raises KeyError for an unknown setting.
    """
    declared = describe_setting(path)
    number = int if declared.type == "int" else float
    low, high = (declared.constraint.low, declared.constraint.high) if declared.constraint else (None, None)
    return {
        "label": setting_label(path),
        "min_value": None if low is None else number(low),
        "max_value": None if high is None else number(min(high, MAX_NUMBER)),
        "help": declared.comment,
    }


def build_config(choices: Mapping[str, Any], toml: str = "") -> RunConfig:
    """The config of nested choices, such as {"agent": {"algorithm": "sac"}}, overridden by settings in TOML.

    Settings in neither keep their defaults. Raises ConfigError for an unknown setting or a value out of its range.
    """
    try:
        overrides = tomllib.loads(toml)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the further settings are not valid TOML: {error}") from None
    config = parse(merge(dict(choices), overrides), "the form")
    for section in ("environment", "agent", "tournament", "gate"):
        check_settings(f"the form: {section}.", getattr(config, section))
    return config


def merge(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables merged recursively; values other than tables are replaced. Changes neither argument."""
    result = dict(values)
    for key, value in overrides.items():
        current = result.get(key)
        both = isinstance(current, Mapping) and isinstance(value, Mapping)
        result[key] = merge(current, value) if both else value  # type: ignore[arg-type]
    return result


def propose_splits(first: date, last: date) -> SplitConfig:
    """The default splits if the data covers them, else 70, 15 and 15 percent of the days from `first` to `last`."""
    default = SplitConfig()
    if first.isoformat() <= default.train[0] and last.isoformat() >= default.test[0]:
        return default
    days = (last - first).days
    train_end = first + timedelta(days=round(TRAIN * days))
    validation_end = first + timedelta(days=round((TRAIN + VALIDATION) * days))
    day = timedelta(days=1)
    return SplitConfig(
        (first.isoformat(), train_end.isoformat()),
        ((train_end + day).isoformat(), validation_end.isoformat()),
        ((validation_end + day).isoformat(), last.isoformat()),
    )
