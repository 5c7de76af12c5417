"""From the choices of the training form to a config: the record that a TOML file gives."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

from finrl_pod.errors import ConfigError
from finrl_pod.settings.run import RunConfig, SplitConfig, parse

TRAIN, VALIDATION = 0.70, 0.15  # shares of the days if the default splits do not fit the data; the rest is the test


def build_config(choices: Mapping[str, Any], toml: str = "") -> RunConfig:
    """The config of nested choices, such as {"agent": {"algorithm": "sac"}}, overridden by settings in TOML.

    Settings in neither keep their defaults. Raises ConfigError naming the setting at fault.
    """
    try:
        overrides = tomllib.loads(toml)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the further settings are not valid TOML: {error}") from None
    return parse(merge(dict(choices), overrides), "the form")


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
