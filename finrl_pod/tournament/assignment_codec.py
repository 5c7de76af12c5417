"""Assignments and results as bytes.

Tensors are encoded as safetensors, everything else as JSON in their header. Nothing else crosses from one process or
machine to another; reading it runs no code.
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
from finrl_pod.tournament.leaderboard import score_from_dict
from finrl_pod.tournament.next_generation import SlotInit
from finrl_pod.tournament.snapshots import decode_tensors, snapshot_from_parts, snapshot_parts
from finrl_pod.types import AgentSnapshot, Tensor

HEADER = "finrl_pod"
PLAIN_FIELDS = ("group", "number", "rows", "replay_first", "samples", "seconds", "scoring_seconds")  # of a result


def encode_assignment(assignment: Assignment) -> bytes:
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
        replay=tuple(
            ReplaySegment(number, _tensors_below(tensors, f"replay.{i}.")) for i, number in enumerate(facts["replay"])
        ),
        seed=facts["seed"],
        samples=facts["samples"],
        seconds=math.inf if facts["seconds"] is None else facts["seconds"],
    )


def encode_result(result: AssignmentResult) -> bytes:
    tensors: dict[str, Tensor] = {"equity": torch.from_numpy(np.ascontiguousarray(result.equity))}
    facts = {name: getattr(result, name) for name in PLAIN_FIELDS}
    facts |= {
        "scores": [dataclasses.asdict(score) for score in result.scores],
        "returns": list(result.returns),
        "agents": _agents(result.agents, tensors),
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
        **{name: facts[name] for name in PLAIN_FIELDS},
        scores=tuple(map(score_from_dict, facts["scores"])),
        equity=tensors["equity"].numpy(),
        returns={name: tensors[f"returns.{i}"].numpy() for i, name in enumerate(facts["returns"])},
        agents=tuple(_read_agents(facts["agents"], tensors)),
        replay=_tensors_below(tensors, "replay."),
    )


def _agents(agents: Sequence[AgentSnapshot], tensors: dict[str, Tensor]) -> list[object]:
    """Facts of agents; their tensors are added to `tensors`."""
    facts_of_agents: list[object] = []
    for i, agent in enumerate(agents):
        facts, agent_tensors = snapshot_parts(agent)
        facts_of_agents.append(facts)
        tensors |= {f"agent.{i}.{name}": x for name, x in agent_tensors.items()}
    return facts_of_agents


def _read_agents(facts_of_agents: Sequence[Any], tensors: Mapping[str, Tensor]) -> list[AgentSnapshot]:
    return [
        snapshot_from_parts(facts, _tensors_below(tensors, f"agent.{i}.")) for i, facts in enumerate(facts_of_agents)
    ]


def _tensors_below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def _pack(facts: object, tensors: Mapping[str, Tensor]) -> bytes:
    from safetensors.torch import save

    cpu_tensors = {name: x.cpu().contiguous() for name, x in tensors.items()}
    data: bytes = save(cpu_tensors, {HEADER: json.dumps(to_plain(facts), allow_nan=False)})
    return data


def _unpack(data: bytes) -> tuple[Any, dict[str, Tensor]]:
    from safetensors import SafetensorError

    try:
        tensors = decode_tensors(data)
        length = int.from_bytes(data[:8], "little")  # of the JSON header, by the safetensors format
        facts = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][HEADER])
    except (SafetensorError, ValueError, KeyError):
        raise RunError("a shard received bytes that are no assignment or result of this program") from None
    return facts, tensors
