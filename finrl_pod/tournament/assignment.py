"""Units of work of a tournament: groups of slots, what their pods are asked to train, and what comes back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.next_generation import SlotInit
from finrl_pod.types import AgentSnapshot, Floats, Score, Tensor


@dataclass(frozen=True)
class Group:
    """Slots whose pods train as one batch. number: place among all groups. cohort: 0 for [agent], then the cohorts."""

    number: int
    cohort: int
    slots: tuple[int, ...]


def make_groups(config: RunConfig, shards: int = 1) -> tuple[Group, ...]:
    """Groups of a new run: batches of `tournament.batch_pods` pods, or one batch per cohort if that is 0.

    With `batch_pods` = 0 and more shards than cohorts, every cohort is cut into as many parts as keep all shards busy.
    """
    agents, pods = 1 + len(config.cohorts), config.tournament.pods
    groups: list[Group] = []
    for cohort in range(agents):
        slots = range(cohort, pods, agents)
        size = config.tournament.batch_pods
        parts = -(-len(slots) // size) if size else min(len(slots), max(1, -(-shards // agents)))
        bounds = [len(slots) * i // parts for i in range(parts + 1)]
        for first, last in itertools.pairwise(bounds):
            groups.append(Group(len(groups), cohort, tuple(slots[first:last])))
    return tuple(groups)


def groups_of_slots(config: RunConfig, slots: Sequence[Sequence[int]]) -> tuple[Group, ...]:
    """Groups with these slots."""
    agents = 1 + len(config.cohorts)
    return tuple(Group(number, own[0] % agents, tuple(own)) for number, own in enumerate(slots))


@dataclass(frozen=True, eq=False)
class ReplaySegment:
    """Items [P, n, ...] that a group's slots collected in one assignment, and the counts after it."""

    number: int
    items: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Assignment:
    """Pods of a group to be trained and scored.

    number: counts the assignments of the group from 0. parents: by id, all that the slot_inits start from. replay: what
    the slots' replay buffers hold, oldest first. seed: of the learner. samples: environment steps per pod.
    seconds: wall-clock limit, infinite if there is none.
    """

    group: Group
    number: int
    slot_inits: tuple[SlotInit, ...]
    parents: Mapping[str, AgentSnapshot]
    replay: tuple[ReplaySegment, ...]
    seed: int
    samples: int
    seconds: float = math.inf

    @property
    def key(self) -> tuple[int, int]:
        """(group, number), unique in a run."""
        return self.group.number, self.number


@dataclass(frozen=True, eq=False)
class AssignmentResult:
    """Outcome of an assignment: scored and saved pods, in the order of the group's slots.

    scores: without roots. equity: [T, P] on validation. returns: [T-1] by id and of the base portfolio; NaN for
    diverged pods. rows: points of the learning curves. replay: new items of the slots' buffers, empty without one.
    replay_first: number of the oldest segment that the buffers still held at the start. samples: environment steps of
    all pods. seconds: that the shard took.
    """

    group: int
    number: int
    scores: tuple[Score, ...]
    equity: Floats
    returns: Mapping[str, Floats]
    agents: tuple[AgentSnapshot, ...]
    rows: Sequence[Mapping[str, Any]] = ()
    replay: Mapping[str, Tensor] = field(default_factory=dict)
    replay_first: int = 0
    samples: int = 0
    seconds: float = 0.0

    @property
    def key(self) -> tuple[int, int]:
        """(group, number) of the assignment."""
        return self.group, self.number


def learning_curves(results: Sequence[AssignmentResult]) -> dict[str, Any]:
    """{"slots": [P], "rows": [{"samples": [P], name: [P]}]} of several groups; None for pods of other groups."""
    slots = [score.slot for result in results for score in result.scores]
    rows, before = [], 0
    for result in results:
        size = len(result.scores)
        ahead, behind = [None] * before, [None] * (len(slots) - before - size)
        rows += [{name: [*ahead, *column, *behind] for name, column in row.items()} for row in result.rows]
        before += size
    return {"slots": slots, "rows": rows}
