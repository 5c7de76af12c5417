"""From what was chosen on the page to a config: the same record that a TOML file gives."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

from finrl_pod.errors import ConfigError
from finrl_pod.settings.run import RunConfig, SplitConfig, parse

TRAIN, VALIDATION = 0.70, 0.15  # of the days, where the default years do not fit the data; the rest is the test


def config_of(choices: Mapping[str, Any], more: str = "") -> RunConfig:
    """The config of nested choices, as {"agent": {"algorithm": "sac"}}, under further settings written as TOML, which
    win. What is not named keeps its default. Raises ConfigError naming what is wrong."""
    try:
        extra = tomllib.loads(more)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the further settings are no TOML: {error}") from None
    return parse(merged(dict(choices), extra), "the form")


def merged(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables put together; `over` wins, and what is no table is replaced as a whole."""
    result = dict(values)
    for key, value in over.items():
        held = result.get(key)
        both = isinstance(held, Mapping) and isinstance(value, Mapping)
        result[key] = merged(held, value) if both else value  # type: ignore[arg-type]
    return result


def proposed_splits(first: date, last: date) -> SplitConfig:
    """The default years where the data cover them, else 70, 15 and 15 percent of the days from `first` to `last`."""
    usual = SplitConfig()
    if first.isoformat() <= usual.train[0] and last.isoformat() >= usual.test[0]:
        return usual
    days = (last - first).days
    end = first + timedelta(days=round(TRAIN * days))
    middle = first + timedelta(days=round((TRAIN + VALIDATION) * days))
    one = timedelta(days=1)
    return SplitConfig(
        (first.isoformat(), end.isoformat()),
        ((end + one).isoformat(), middle.isoformat()),
        ((middle + one).isoformat(), last.isoformat()),
    )
