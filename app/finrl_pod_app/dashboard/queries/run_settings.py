"""Settings of runs by dotted name, and in which of them runs differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pandas as pd

Settings = Mapping[str, object]  # value by dotted name, such as agent.learning_rate


def dotted(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """The settings in nested sections by dotted name. Lists are values."""
    return dict(_dotted_items(values, prefix))


def _dotted_items(values: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _dotted_items(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def setting_text(value: object) -> str:
    """A value as in a config; empty for a missing one."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def differing_names(settings_by_run: Mapping[str, Settings]) -> list[str]:
    """Dotted names whose values differ between runs, in the order of the configs."""
    names = dict.fromkeys(name for settings in settings_by_run.values() for name in settings)
    texts = {name: {setting_text(settings.get(name)) for settings in settings_by_run.values()} for name in names}
    return [name for name in names if len(texts[name]) > 1]


def differences(settings_by_run: Mapping[str, Settings]) -> pd.DataFrame:
    """One row per setting that differs: its dotted name in the column setting, then one column of texts per run."""
    names = differing_names(settings_by_run)
    columns = {run: [setting_text(settings.get(name)) for name in names] for run, settings in settings_by_run.items()}
    return pd.DataFrame({"setting": names, **columns}, dtype=object)
