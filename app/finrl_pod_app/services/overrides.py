"""Override fields of a config, as the flags of `backtest` and `sweep` do."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Sequence
from typing import Any

from finrl_pod.errors import InputError
from finrl_pod.settings.run import RunConfig, parse


def override_config(
    config: RunConfig,
    data: str | None = None,
    cost_bps: float | None = None,
    cash: float | None = None,
    settings: Sequence[str] = (),
) -> RunConfig:
    """The config with the given overrides. settings: `name=value` lines, environment fields in TOML notation.

    Raises InputError for a cost or cash out of range, ConfigError for an unknown field or an invalid value.
    """
    if cost_bps is not None and not 0 <= cost_bps < 10_000:
        raise InputError(f"--cost-bps must be at least 0 and below 10000, got {cost_bps:g}")
    if cash is not None and not cash > 0:
        raise InputError(f"--cash must be above zero, got {cash:g}")
    given: dict[str, Any] = {
        name: value for name, value in (("cost_bps", cost_bps), ("cash", cash)) if value is not None
    }
    environment = dataclasses.replace(config.environment, **given)
    source = config.data if data is None else dataclasses.replace(config.data, name=data, symbols=())
    changed = dataclasses.replace(config, environment=environment, data=source)
    if not settings:
        return changed
    values = dataclasses.asdict(changed)
    values["environment"].update(parse_setting(line) for line in settings)
    return parse(values, "--set")


def parse_setting(line: str) -> tuple[str, Any]:
    """Parse "delay=2" as ("delay", 2); a value that is not TOML is text. Raises InputError without an equals sign."""
    name, separator, value = line.partition("=")
    if not separator or not name.strip():
        raise InputError(f"--set takes name=value, such as delay=2, got {line!r}")
    try:
        read = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        read = value.strip()
    return name.strip().removeprefix("environment.").removeprefix("agent."), read
