"""Removing what no champion refers to from a registry."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from finrl_pod.registry.agent_registry import CHAMPIONS, OBJECTS, STRATEGIES, AgentRegistry, champion_key, object_key
from finrl_pod.registry.handover import last_handover, strategies

MIN_AGE = timedelta(hours=1)  # files of a push that has not written its champion yet are younger


@dataclass(frozen=True)
class Garbage:
    """Removed champions by address, and keys of other removed files. kept: number of champions that remain."""

    champions: tuple[str, ...]
    files: tuple[str, ...]
    kept: int


def champions_in_use(registry: AgentRegistry) -> set[str]:
    """Champions that a strategy trades or can return to."""
    changes = [last_handover(registry, name) for name in strategies(registry)]
    return {address for change in changes if change is not None for address in change.champions}


def collect_garbage(
    registry: AgentRegistry, *, min_age: timedelta = MIN_AGE, refused: bool = False, dry_run: bool = False
) -> Garbage:
    """Remove files that no champion refers to, and temporary files of killed writers, if older than `min_age`.

    refused: also remove champions that the gate refused. Champions that a strategy trades or can return to stay. A
    champion is removed before its files. dry_run: remove nothing. Raises RegistryError, with nothing removed, if a
    record cannot be read: what it refers to would be unknown.
    """
    before = datetime.now(UTC) - min_age
    in_use, champions = champions_in_use(registry), {champion.address: champion for champion in registry.champions()}
    dropped = [
        address
        for address, champion in champions.items()
        if refused and not champion.promoted and address not in in_use
        and _is_older(registry, champion_key(address), before)
    ]  # fmt: skip
    used = {
        object_key(digest)
        for address, champion in champions.items()
        if address not in dropped
        for digest in champion.files.values()
    }
    files = [key for key in _unused(registry, used) if _is_older(registry, key, before)]
    for key in () if dry_run else (*map(champion_key, dropped), *files):
        if _is_older(registry, key, before):  # a push may have written it again meanwhile
            registry.store.delete(key)
    return Garbage(tuple(dropped), tuple(files), len(champions) - len(dropped))


def _unused(registry: AgentRegistry, used: Collection[str]) -> list[str]:
    """Keys of objects that are not in `used`, and of temporary files."""
    objects = registry.store.keys(OBJECTS)
    others = [*registry.store.keys(CHAMPIONS), *registry.store.keys(STRATEGIES)]
    temporary = [key for key in others if key.split("/")[-1].startswith(".")]
    return [*(key for key in objects if key not in used), *temporary]


def _is_older(registry: AgentRegistry, key: str, time: datetime) -> bool:
    modified = registry.store.modified(key)
    return modified is not None and modified <= time
