"""Assignments and results as bytes: tensors as safetensors, everything else as JSON in their header.

What crosses from one process or machine to another is this and nothing else; reading it runs no code.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from finrl_pod.errors import RunError
from finrl_pod.files import to_plain
from finrl_pod.tournament.assignment import Assignment, AssignmentResult, Group, ReplaySegment
from finrl_pod.tournament.next_generation import SlotInit
from finrl_pod.tournament.snapshots import decode_tensors, snapshot_from_parts, snapshot_parts
from finrl_pod.types import AgentSnapshot, Score, Tensor

HEADER = "finrl_pod"


def encode_assignment(assignment: Assignment) -> bytes:
    """Bytes of an assignment."""
    tensors: dict[str, Tensor] = {}
    facts = {
        "group": dataclasses.asdict(assignment.group),
        "number": assignment.number,
        "slot_inits": [dataclasses.asdict(slot_init) for slot_init in assignment.slot_inits],
        "parents": _agents(list(assignment.parents.values()), tensors),
        "replay": [segment.number for segment in assignment.replay],
        "seed": assignment.seed,
        "samples": assignment.samples,
        "seconds": None if math.isinf(assignment.seconds) else assignment.seconds,
    }
    for i, segment in enumerate(assignment.replay):
        tensors |= {f"replay.{i}.{name}": x for name, x in segment.items.items()}
    return _pack(facts, tensors)


def decode_assignment(data: bytes) -> Assignment:
    """Inverse of `encode_assignment`. Raises RunError for other bytes."""
    facts, tensors = _unpack(data)
    group = facts["group"]
    return Assignment(
        group=Group(group["number"], group["cohort"], tuple(group["slots"])),
        number=facts["number"],
        slot_inits=tuple(SlotInit(**slot_init) for slot_init in facts["slot_inits"]),
        parents={agent.id: agent for agent in _read_agents(facts["parents"], tensors)},
        replay=tuple(ReplaySegment(number, _part(tensors, f"replay.{i}.")) for i, number in enumerate(facts["replay"])),
        seed=facts["seed"],
        samples=facts["samples"],
        seconds=math.inf if facts["seconds"] is None else facts["seconds"],
    )


def encode_result(result: AssignmentResult) -> bytes:
    """Bytes of a result."""
    tensors: dict[str, Tensor] = {"equity": torch.from_numpy(np.ascontiguousarray(result.equity))}
    facts = {
        "group": result.group,
        "number": result.number,
        "scores": [dataclasses.asdict(score) for score in result.scores],
        "returns": list(result.returns),
        "agents": _agents(result.agents, tensors),
        "rows": list(result.rows),
        "replay": list(result.replay),
        "replay_first": result.replay_first,
        "samples": result.samples,
        "seconds": result.seconds,
    }
    tensors |= {
        f"returns.{i}": torch.from_numpy(np.ascontiguousarray(x)) for i, x in enumerate(result.returns.values())
    }
    tensors |= {f"replay.{name}": x for name, x in result.replay.items()}
    return _pack(facts, tensors)


def decode_result(data: bytes) -> AssignmentResult:
    """Inverse of `encode_result`. Raises RunError for other bytes."""
    facts, tensors = _unpack(data)
    return AssignmentResult(
        group=facts["group"],
        number=facts["number"],
        scores=tuple(_score(row) for row in facts["scores"]),
        equity=tensors["equity"].numpy(),
        returns={name: tensors[f"returns.{i}"].numpy() for i, name in enumerate(facts["returns"])},
        agents=tuple(_read_agents(facts["agents"], tensors)),
        rows=facts["rows"],
        replay=_part(tensors, "replay."),
        replay_first=facts["replay_first"],
        samples=facts["samples"],
        seconds=facts["seconds"],
    )


def _score(row: Mapping[str, Any]) -> Score:
    """A score from its JSON values, null for NaN."""
    metrics = {name: math.nan if value is None else value for name, value in row["metrics"].items()}
    return Score(**{**row, "metrics": metrics, "score": math.nan if row["score"] is None else row["score"]})


def _agents(agents: Sequence[AgentSnapshot], tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Facts of agents; their tensors are added to `tensors`."""
    every = []
    for i, agent in enumerate(agents):
        facts, own = snapshot_parts(agent)
        every.append(facts)
        tensors |= {f"agent.{i}.{name}": x for name, x in own.items()}
    return every


def _read_agents(every: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> list[AgentSnapshot]:
    return [snapshot_from_parts(facts, _part(tensors, f"agent.{i}.")) for i, facts in enumerate(every)]


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def _pack(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    from safetensors.torch import save

    plain = {name: x.cpu().contiguous() for name, x in tensors.items()}
    data: bytes = save(plain, {HEADER: json.dumps(to_plain(facts), allow_nan=False)})
    return data


def _unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import SafetensorError

    try:
        tensors = decode_tensors(data)
        length = int.from_bytes(data[:8], "little")  # of the JSON header, by the safetensors format
        facts = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][HEADER])
    except (SafetensorError, ValueError, KeyError):
        raise RunError("a shard received bytes that are no assignment or result of this program") from None
    return facts, tensors
