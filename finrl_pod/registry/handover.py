"""Which champion each strategy trades, the way back, and removal of champions and files that nothing needs.

Each change is one new file, numbered in order and never overwritten. It contains the whole state after the change: a
kill leaves either the old champion or the new one. Of two processes that change a strategy at once, one fails.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from finrl_pod.errors import RegistryError
from finrl_pod.registry.agent_registry import CHAMPIONS, OBJECTS, STRATEGIES, AgentRegistry, champion_key, object_key
from finrl_pod.registry.records import Champion, Handover

KEPT = 5  # champions that a strategy can trade again, including the current one
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FILE = re.compile(r"(\d{6})\.json")
MIN_AGE = timedelta(hours=1)  # files of a push that has not written its champion yet are younger


def check_strategy_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise RegistryError(
            "a strategy name has letters, digits, '.', '_' and '-', starts with a letter or digit and is at most 64 "
            f"long, got {name!r}"
        )


def strategies(registry: AgentRegistry) -> list[str]:
    """Names of all strategies that champions were handed over to."""
    return sorted({key.split("/")[1] for key in registry.store.keys(STRATEGIES) if _FILE.fullmatch(key.split("/")[-1])})


def last_handover(registry: AgentRegistry, strategy: str) -> Handover | None:
    """The latest change of a strategy, None without any."""
    numbers = _numbers(registry, strategy)
    return _read(registry, strategy, numbers[-1]) if numbers else None


def handovers(registry: AgentRegistry, strategy: str) -> list[Handover]:
    """All changes of a strategy, oldest first."""
    return [_read(registry, strategy, number) for number in _numbers(registry, strategy)]


def hand_over(registry: AgentRegistry, strategy: str, champion: Champion) -> Handover:
    """Hand a stored champion over to a strategy; nothing is written if the strategy trades it already.

    Raises RegistryError for one that was not promoted, one that the strategy was rolled back from, and if another
    process changes the strategy at the same time.
    """
    address = champion.address
    if not champion.promoted:
        raise RegistryError(f"champion {address[:12]} was not promoted by the gate and is not handed over")
    last = last_handover(registry, strategy)
    if last is None:
        return _write(registry, strategy, None, "hand_over", (address,), ())
    if registry.champion(last.champion).ensemble == champion.ensemble:
        return last
    if champion.ensemble in last.withdrawn:
        raise RegistryError(
            f"strategy {strategy!r} was rolled back from the agents of champion {address[:12]}, so they are not handed "
            "over again"
        )
    previous_champions = tuple(previous for previous in last.champions if previous != address)[-(KEPT - 1) :]
    return _write(registry, strategy, last, "hand_over", (*previous_champions, address), last.withdrawn)


def roll_back(registry: AgentRegistry, strategy: str) -> Handover:
    """Return to the previous champion. The agents of the withdrawn one are not handed over to the strategy again.

    Raises RegistryError if there is none before.
    """
    last = last_handover(registry, strategy)
    if last is None:
        raise RegistryError(
            f"no champion was handed over to strategy {strategy!r} in the registry {registry.store.address}"
        )
    if last.previous is None:
        raise RegistryError(f"strategy {strategy!r} has no champion before {last.champion[:12]} to go back to")
    withdrawn = registry.champion(last.champion).ensemble
    return _write(registry, strategy, last, "roll_back", last.champions[:-1], (*last.withdrawn, withdrawn))


def _write(
    registry: AgentRegistry, strategy: str, last: Handover | None, action: str, champions: tuple[str, ...],
    withdrawn: tuple[str, ...],
) -> Handover:  # fmt: skip
    change = Handover(
        number=1 if last is None else last.number + 1,
        strategy=strategy,
        action="roll_back" if action == "roll_back" else "hand_over",
        champions=champions,
        replaced=None if last is None else last.champion,
        withdrawn=withdrawn,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        by=_user(),
    )
    if not registry.store.create(_key(strategy, change.number), change.encode()):
        raise RegistryError(f"another process changed strategy {strategy!r} at the same time; run the command again")
    return change


def _numbers(registry: AgentRegistry, strategy: str) -> list[int]:
    check_strategy_name(strategy)
    names = [key.split("/")[-1] for key in registry.store.keys(f"{STRATEGIES}/{strategy}")]
    return sorted(int(match[1]) for name in names if (match := _FILE.fullmatch(name)))


def _read(registry: AgentRegistry, strategy: str, number: int) -> Handover:
    key = _key(strategy, number)
    data = registry.store.read(key)
    if data is None:
        raise RegistryError(f"the registry file {key} is missing; restore it")
    return Handover.decode(data, key)


def _key(strategy: str, number: int) -> str:
    return f"{STRATEGIES}/{strategy}/{number:06d}.json"


def _user() -> str:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = f"user {os.getuid()}"
    return f"{name} on {socket.gethostname()}"


@dataclass(frozen=True)
class Garbage:
    """Removed champions by address, and keys of other removed files. kept: number of champions that remain."""

    champions: tuple[str, ...]
    files: tuple[str, ...]
    kept: int


def collect_garbage(
    registry: AgentRegistry, *, min_age: timedelta = MIN_AGE, include_refused: bool = False, dry_run: bool = False
) -> Garbage:
    """Remove files that no champion refers to, and temporary files of killed writers, if older than `min_age`.

    include_refused: also remove champions that the gate refused. Champions that a strategy trades or can return to
    stay. A champion is removed before its files. dry_run: remove nothing. Raises RegistryError, with nothing removed,
    if a record cannot be read: the files that it refers to would be unknown.
    """
    time_limit = datetime.now(UTC) - min_age
    changes = [last_handover(registry, name) for name in strategies(registry)]
    in_use = {address for change in changes if change is not None for address in change.champions}
    champions = {champion.address: champion for champion in registry.champions()}
    removed_champions = [
        address
        for address, champion in champions.items()
        if include_refused and not champion.promoted and address not in in_use
        and _is_older(registry, champion_key(address), time_limit)
    ]  # fmt: skip
    used_keys = {
        object_key(digest)
        for address, champion in champions.items()
        if address not in removed_champions
        for digest in champion.files.values()
    }
    files = [key for key in _unused_keys(registry, used_keys) if _is_older(registry, key, time_limit)]
    for key in () if dry_run else (*map(champion_key, removed_champions), *files):
        if _is_older(registry, key, time_limit):  # a push may have written it again meanwhile
            registry.store.delete(key)
    return Garbage(tuple(removed_champions), tuple(files), len(champions) - len(removed_champions))


def _unused_keys(registry: AgentRegistry, used_keys: Collection[str]) -> list[str]:
    """Keys of objects that are not in `used_keys`, and of temporary files."""
    objects = registry.store.keys(OBJECTS)
    record_keys = [*registry.store.keys(CHAMPIONS), *registry.store.keys(STRATEGIES)]
    temporary = [key for key in record_keys if key.split("/")[-1].startswith(".")]
    return [*(key for key in objects if key not in used_keys), *temporary]


def _is_older(registry: AgentRegistry, key: str, time: datetime) -> bool:
    modification_time = registry.store.modification_time(key)
    return modification_time is not None and modification_time <= time
