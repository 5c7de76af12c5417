"""Handing champions over to strategies: which champion each strategy trades, and the way back.

Each change is one new file, numbered in order and never overwritten. It holds the whole state after the change, so a
kill leaves either the old champion or the new one. Of two processes that change a strategy at the same time one fails.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from datetime import UTC, datetime

from finrl_pod.errors import RegistryError
from finrl_pod.registry.agent_registry import STRATEGIES, AgentRegistry
from finrl_pod.registry.records import Champion, Handover

KEPT = 5  # champions that a strategy can return to, the one it trades included
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FILE = re.compile(r"(\d{6})\.json")


def check_strategy_name(name: str) -> None:
    """Raises RegistryError if a strategy's name is invalid."""
    if not _NAME.fullmatch(name):
        raise RegistryError(
            "a strategy's name has letters, digits, '.', '_' and '-', starts with a letter or digit and is at most 64 "
            f"long, got {name!r}"
        )


def strategies(registry: AgentRegistry) -> list[str]:
    """Names of all strategies that champions were handed over to."""
    return sorted({key.split("/")[1] for key in registry.store.keys(STRATEGIES) if _FILE.fullmatch(key.split("/")[-1])})


def last_handover(registry: AgentRegistry, strategy: str) -> Handover | None:
    """The newest change of a strategy, None if no champion was handed over yet."""
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
    kept = tuple(other for other in last.champions if other != address)[-(KEPT - 1) :]
    return _write(registry, strategy, last, "hand_over", (*kept, address), last.withdrawn)


def roll_back(registry: AgentRegistry, strategy: str) -> Handover:
    """Return to the champion before the present one, whose agents are not handed over to the strategy again.

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
    return sorted(int(found[1]) for name in names if (found := _FILE.fullmatch(name)))


def _read(registry: AgentRegistry, strategy: str, number: int) -> Handover:
    key = _key(strategy, number)
    data = registry.store.read(key)
    if data is None:
        raise RegistryError(f"the registry's file {key} is missing; restore it")
    return Handover.decode(data, key)


def _key(strategy: str, number: int) -> str:
    return f"{STRATEGIES}/{strategy}/{number:06d}.json"


def _user() -> str:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = f"user {os.getuid()}"
    return f"{name} on {socket.gethostname()}"
