"""Records of the registry: champions with their agents, and changes of the champion that a strategy trades.

Records are stored as JSON. The address of a champion is the SHA-256 of its JSON with the hashes of all its files: it
identifies every byte of a champion.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

from finrl_pod.errors import RegistryError

FORMAT = 1
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, RecursionError)  # raised by records of another form


@dataclass(frozen=True)
class AgentRecord:
    """An agent on the leaderboard of a run.

    id: name in the run. address: SHA-256 of the JSON file with the hash of the weights. ancestors: ids of the
    ancestors, parent first. samples: environment steps. score: Sharpe ratio on validation. share: weight in the
    ensemble, 0 for agents outside of it.
    """

    id: str
    address: str
    algorithm: str
    ancestors: tuple[str, ...]
    samples: int
    score: float | None
    share: float


@dataclass(frozen=True)
class Champion:
    """A champion and the files of its run.

    run: name of the run folder. files: path in the run -> SHA-256 of its contents. agents: members of the ensemble
    first. promoted: verdict of the gate. data: name of the panel. version: version of finrl_pod.
    """

    run: str
    agents: tuple[AgentRecord, ...]
    files: Mapping[str, str]
    promoted: bool
    data: str
    data_sha256: str
    config_sha256: str
    version: str
    format: int = FORMAT

    @property
    def address(self) -> str:
        return sha256(self.encode())

    @property
    def members(self) -> tuple[AgentRecord, ...]:
        return tuple(agent for agent in self.agents if agent.share)

    @property
    def ensemble(self) -> str:
        """SHA-256 of the members and their shares: what is traded. Equal for two reports on the same ensemble."""
        return sha256(canonical_json({agent.address: agent.share for agent in self.members}))

    def encode(self) -> bytes:
        """The record as JSON, the same bytes for equal records."""
        return canonical_json(dataclasses.asdict(self))

    @classmethod
    def decode(cls, data: bytes, address: str) -> Champion:
        """Read a record. Raises RegistryError if its hash is not `address` or its format is unknown."""
        if sha256(data) != address:
            raise RegistryError(f"the record of champion {address} is damaged: its hash differs; push its run again")
        try:
            values = json.loads(data)
            version = values["format"]
            if version == FORMAT:
                TypeAdapter(cls).validate_json(data, strict=True)
                rows = values.pop("agents")
                agents = tuple(AgentRecord(**{**row, "ancestors": tuple(row["ancestors"])}) for row in rows)
                champion = cls(agents=agents, **values)
                if champion.address != address:
                    raise ValueError
                return champion
        except _MALFORMED:
            raise RegistryError(f"the record of champion {address} is malformed; push its run again") from None
        raise RegistryError(
            f"champion {address} has format {str(version)[:80]}, this version reads {FORMAT}; upgrade finrl_pod"
        )


@dataclass(frozen=True)
class Handover:
    """A change of the champion that a strategy trades, and the state after it.

    number: counts from 1. champions: addresses handed over and not rolled back, the one to trade last. replaced: the
    champion traded before this change. withdrawn: ensembles that were rolled back. at: UTC, ISO 8601. by: user, host.
    """

    number: int
    strategy: str
    action: Literal["hand_over", "roll_back"]
    champions: tuple[str, ...]
    replaced: str | None
    withdrawn: tuple[str, ...]
    at: str
    by: str

    @property
    def champion(self) -> str:
        return self.champions[-1]

    @property
    def previous(self) -> str | None:
        """Address of the champion before, None for the first."""
        return self.champions[-2] if len(self.champions) > 1 else None

    def encode(self) -> bytes:
        """The record as JSON with its hash."""
        values = dataclasses.asdict(self)
        return canonical_json({**values, "sha256": sha256(canonical_json(values))})

    @classmethod
    def decode(cls, data: bytes, key: str) -> Handover:
        """Read a record. Raises RegistryError if it is damaged. key: named in the message."""
        try:
            values = json.loads(data)
            saved_hash = values.pop("sha256")
            if sha256(canonical_json(values)) != saved_hash:
                raise ValueError
            TypeAdapter(cls).validate_json(data, strict=True)
            lists = {name: tuple(values[name]) for name in ("champions", "withdrawn")}
            if not lists["champions"]:
                raise ValueError
            return cls(**{**values, **lists})
        except _MALFORMED:
            raise RegistryError(f"the registry file {key} is damaged: its hash differs; restore it") from None


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def canonical_json(values: object) -> bytes:
    """JSON with sorted keys: equal values give equal bytes. Raises ValueError for NaN and infinity."""
    return (json.dumps(values, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()
