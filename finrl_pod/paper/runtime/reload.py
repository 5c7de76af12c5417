"""Which settings of a running daemon may change when its config is read again."""

from __future__ import annotations

import dataclasses
from typing import Any

from finrl_pod.errors import ConfigError
from finrl_pod.paper.settings import PaperConfig

SECTIONS = ("risk", "orders", "data", "timing")  # every setting of these may change
SETTINGS = ("monitoring.summary_minutes",)


def changed_settings(old_config: PaperConfig, new_config: PaperConfig) -> list[str]:
    """Return the changes as "name: old -> new".

    Raises ConfigError for a change that needs a restart, naming all of them: the account, what is traded with how much
    of it, when, and how the daemon is reached belong to its journal, connections and threads.
    """
    changes = {**_differences("", old_config, new_config)}
    fixed_settings = sorted(name for name in changes if name.split(".")[0] not in SECTIONS and name not in SETTINGS)
    if fixed_settings:
        raise ConfigError(
            f"{', '.join(fixed_settings)} cannot change while the daemon runs; restart it, or set the former value "
            f"again. Only {', '.join(SECTIONS)}, {' and '.join(SETTINGS)} can"
        )
    return [f"{name}: {old!r} -> {new!r}" for name, (old, new) in sorted(changes.items())]


def _differences(prefix: str, old_config: Any, new_config: Any) -> dict[str, tuple[Any, Any]]:
    changes: dict[str, tuple[Any, Any]] = {}
    for field in dataclasses.fields(old_config):
        old, new = getattr(old_config, field.name), getattr(new_config, field.name)
        if dataclasses.is_dataclass(old):
            changes |= _differences(f"{prefix}{field.name}.", old, new)
        elif old != new:
            changes[prefix + field.name] = (old, new)
    return changes
