"""Override fields of a config, as the flags of `backtest` and `sweep` do."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from finrl_pod.errors import ConfigError, InputError
from finrl_pod.settings.run import RunConfig, parse
from finrl_pod.settings.toml import closest_key, parse_toml

# Fields of [environment] that only training reads.
TRAINING_SETTINGS = ("kind", "source", "evaluation_episodes", "window", "reward", "risk_aversion", "envs", "group")

SettingValue = bool | int | float | str | np.generic | PurePath | Sequence[object] | None  # see `plain_value`


def override_config(
    config: RunConfig,
    data: str | None = None,
    cost_bps: float | None = None,
    cash: float | None = None,
    settings: Sequence[str] | Mapping[str, SettingValue] = (),
) -> RunConfig:
    """The config with the given overrides. settings: fields of [environment], or `name=value` lines in TOML notation.

    Raises InputError for a cost or cash out of range, ConfigError for an unknown field, an invalid value, and a field
    that changes nothing outside of training.
    """
    if cost_bps is not None and not 0 <= cost_bps < 10_000:
        raise InputError(f"cost_bps must be at least 0 and below 10000, got {cost_bps:g}")
    if cash is not None and not cash > 0:
        raise InputError(f"cash must be above zero, got {cash:g}")
    environment = config.environment
    if cost_bps is not None:
        environment = dataclasses.replace(environment, cost_bps=cost_bps)
    if cash is not None:
        environment = dataclasses.replace(environment, cash=cash)
    prices = config.data if data is None else dataclasses.replace(config.data, name=data, symbols=(), chosen="")
    new_config = dataclasses.replace(config, environment=environment, data=prices)
    source = "settings" if isinstance(settings, Mapping) else "--set"
    values = setting_values(settings)
    for name in values:
        if name in TRAINING_SETTINGS:
            raise ConfigError(f"{source} {name}: it acts in training alone; train with it, and leave it out here")
        if "." in name:
            raise ConfigError(
                f"{source} {name}: a backtest takes fields of [environment] alone, and a run keeps its other sections"
            )
    return apply_settings(new_config, [(f"environment.{name}", value) for name, value in values.items()], source)


def setting_values(settings: Sequence[str] | Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Values by the name of their field of [environment]. Raises InputError as `parse_assignment`."""
    pairs = settings.items() if isinstance(settings, Mapping) else map(parse_assignment, settings)
    return {name.removeprefix("environment."): value for name, value in pairs}


def override_run(
    config: RunConfig, data: str | None = None, cost_bps: float | None = None, settings: Sequence[str] = ()
) -> RunConfig:
    """The config of a tournament with overrides. settings: `section.name=value` lines in TOML notation.

    A name without a section is a setting of [environment], or of the whole run, such as seed. data: another panel of
    the store, with splits that fit its dates. Raises ConfigError for an unknown name or an invalid value, InputError
    for a cost out of range or a line without an equals sign.
    """
    if data is not None and data != config.data.name:
        from finrl_pod.data.store import Store
        from finrl_pod_app.setup.presets import for_stored_panel

        config = for_stored_panel(config, Store(), data)
    config = override_config(config, cost_bps=cost_bps)
    return apply_settings(config, [parse_assignment(line) for line in settings], "--set")


def apply_settings(config: RunConfig, settings: Sequence[tuple[str, Any]], source: str) -> RunConfig:
    """The config with the given values of settings such as "tournament.pods"; names as in `override_run`.

    source: where they come from, for messages. Raises ConfigError for an unknown name or an invalid value.
    """
    if not settings:
        return config
    values = dataclasses.asdict(config)
    for name, given_value in settings:
        value = plain_value(given_value)
        for item in value if isinstance(value, list | tuple) else [value]:
            if callable(item):
                word = getattr(item, "__name__", "name")
                raise InputError(
                    f'{source} {name}: a run keeps its parts by name, got the object {word}: give "file.py:{word}", or '
                    f'register it, as by fp.register_feature("{word}")({word}), and give "{word}"'
                )
        section, _, key = name.rpartition(".")
        if isinstance(values.get(name), dict):
            example = f"{name}.{next(iter(values[name]))}"
            raise ConfigError(f"{source} {name}: it is a section; name one of its settings, such as {example}=VALUE")
        if not section and not (name in values and not isinstance(values[name], dict)):
            section = "environment"
        table = values if not section else values.get(section)
        if not isinstance(table, dict):
            names = [key for key, entry in values.items() if isinstance(entry, dict)]
            raise ConfigError(f"{source} {name}: there is no section {section!r}; {closest_key(section, names)}")
        sections = [head for head, items in values.items() if isinstance(items, dict) and key in items]
        if "." not in name and section == "environment" and key not in table and sections:
            raise ConfigError(f"{source} {name}: did you mean {sections[0]}.{key}?")
        if (section, key) == ("agent", "algorithm") and value != table.get(key):
            values["agent"] = table = {}  # other algorithms have other settings
        table[key] = value
    return parse(values, source)


def plain_value(value: Any) -> Any:
    """A value as TOML has it: numbers of NumPy as numbers, paths as text, also inside of sequences.

    A number of lower precision becomes the shortest decimal that it is rounded from: float32(0.001) is 0.001.
    """
    if isinstance(value, np.floating):
        return float(str(value))
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    return value


def parse_setting(line: str) -> tuple[str, Any]:
    """Parse "delay=2" as ("delay", 2), without its section. Raises InputError without an equals sign."""
    name, value = parse_assignment(line)
    return name.removeprefix("environment.").removeprefix("agent."), value


def parse_assignment(line: str, option: str = "--set") -> tuple[str, Any]:
    """Parse "tournament.pods=4" as ("tournament.pods", 4); a value that is not TOML is text.

    Raises InputError without an equals sign.
    """
    name, separator, value = line.partition("=")
    if not separator or not name.strip():
        raise InputError(f"{option} takes name=value, such as delay=2, got {line!r:.80}")
    try:
        read = parse_toml(f"value = {value}", name)["value"]
    except ConfigError:
        read = value.strip()
    return name.strip(), read
