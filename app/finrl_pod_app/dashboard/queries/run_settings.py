"""Settings of runs as texts by dotted name, and in which of them runs differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pandas as pd

Settings = Mapping[str, str]  # text of the value by dotted name, such as agent.learning_rate


def dotted_settings(sections: object) -> dict[str, str]:
    """Settings in nested mappings by dotted name, as texts. Lists are values; a missing value is empty."""
    return dict(_dotted_items(sections, ""))


def _dotted_items(value: object, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _dotted_items(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value if isinstance(value, str) else "" if value is None else json.dumps(value)


def differing_names(settings_by_run: Mapping[str, Settings]) -> list[str]:
    """Dotted names whose values differ between runs, in the order of the configs."""
    names = dict.fromkeys(name for settings in settings_by_run.values() for name in settings)
    return [name for name in names if len({settings.get(name, "") for settings in settings_by_run.values()}) > 1]


def differences(settings_by_run: Mapping[str, Settings]) -> pd.DataFrame:
    """One row per setting that differs: its dotted name in the column setting, then one column of texts per run."""
    names = differing_names(settings_by_run)
    columns = {run: [settings.get(name, "") for name in names] for run, settings in settings_by_run.items()}
    return pd.DataFrame({"setting": names, **columns}, dtype=object)
