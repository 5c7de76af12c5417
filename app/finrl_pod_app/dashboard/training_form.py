"""The training form: fields derived from the declarations of the settings, and the config built from its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import RunConfig, describe_setting, parse
from finrl_pod.settings.toml import parse_toml

BASES = ("equal_weight", "inverse_volatility", "minimum_variance", "hierarchical_risk_parity", "none")
DECIDE_EVERY: tuple[int | str, ...] = (1, 5, 21, "week", "month")
MAX_NUMBER = 2**53 - 1  # the largest integer of a browser


def setting_label(path: str) -> str:
    """The label of a setting by its dotted name: "environment.cost_bps" -> "Cost (bps)"."""
    return path.rpartition(".")[2].replace("_bps", " (bps)").replace("_", " ").capitalize()


def number_field(path: str) -> dict[str, Any]:
    """Label, help and bounds of the input field of a number, as keyword arguments of `st.number_input`.

    All numbers are int or float as declared. Raises KeyError for an unknown setting.
    """
    declaration = describe_setting(path)
    number = int if declaration.type == "int" else float
    low, high = (declaration.constraint.low, declaration.constraint.high) if declaration.constraint else (None, None)
    return {
        "label": setting_label(path),
        "min_value": None if low is None else number(low),
        "max_value": None if high is None else number(min(high, MAX_NUMBER)),
        "help": declaration.comment,
    }


def build_config(choices: Mapping[str, Any], toml: str = "") -> RunConfig:
    """The config of nested choices, such as {"agent": {"algorithm": "sac"}}, overridden by settings in TOML.

    Settings in neither keep their defaults. Raises ConfigError for an unknown setting or a value out of its range.
    """
    overrides = parse_toml(toml, "the further settings")
    config = parse(merge(dict(choices), overrides), "the form")
    for section in ("environment", "mandate", "agent", "tournament", "gate"):
        check_settings(f"the form: {section}.", getattr(config, section))
    return config


def merge(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables merged recursively; values other than tables are replaced. Changes neither argument."""
    result = dict(values)
    for key, value in overrides.items():
        current = result.get(key)
        are_tables = isinstance(current, Mapping) and isinstance(value, Mapping)
        result[key] = merge(current, value) if are_tables else value  # type: ignore[arg-type]
    return result
