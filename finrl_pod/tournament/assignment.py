"""Units of work of a tournament: groups of slots, assignments for their pods, and results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from finrl_pod.errors import RunError
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.learning_curves import CurveRow
from finrl_pod.tournament.next_generation import SlotInit
from finrl_pod.types import AgentSnapshot, Floats, Score, Tensor

COUNTS = "counts"  # items ever written, samples and updates; the other tensors of a replay segment are [P, n, ...]


@dataclass(frozen=True)
class Group:
    """Slots whose pods train as one batch. number: index among all groups. cohort: 0 for [agent], then the cohorts."""

    number: int
    cohort: int
    slots: tuple[int, ...]


def make_groups(config: RunConfig, shards: int = 1) -> tuple[Group, ...]:
    """Groups of a new run: batches of `tournament.batch_pods` pods, or one batch per cohort if that is 0.

    With `batch_pods` = 0 and more shards than cohorts, every cohort is cut into enough groups for all shards.
    """
    agents = 1 + len(config.cohorts)
    pods = config.tournament.pods
    groups: list[Group] = []
    for cohort in range(agents):
        slots = range(cohort, pods, agents)
        size = config.tournament.batch_pods
        group_count = -(-len(slots) // size) if size else min(len(slots), max(1, -(-shards // agents)))
        bounds = [len(slots) * i // group_count for i in range(group_count + 1)]
        for first, last in itertools.pairwise(bounds):
            groups.append(Group(len(groups), cohort, tuple(slots[first:last])))
    return tuple(groups)


def groups_of_slots(config: RunConfig, slots: Sequence[Sequence[int]]) -> tuple[Group, ...]:
    agents = 1 + len(config.cohorts)
    return tuple(Group(number, group_slots[0] % agents, tuple(group_slots)) for number, group_slots in enumerate(slots))


@dataclass(frozen=True, eq=False)
class ReplaySegment:
    """Items [P, n, ...] that the slots of a group collected in one assignment, and the counts after it."""

    number: int
    items: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Assignment:
    """Pods of a group to be trained and scored.

    number: counts the assignments of the group from 0. parents: snapshots that the slot_inits start from, by id.
    replay: contents of the replay buffers, oldest first. seed: seed of the learner. samples: environment steps per pod.
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
        return self.group.number, self.number


@dataclass(frozen=True, eq=False)
class AssignmentResult:
    """Outcome of an assignment: scored and saved pods, in the order of the slots.

    scores: without roots. equity: [T, P] on validation. returns: [T-1] by id and of the base portfolio; NaN for
    diverged pods. rows: points of the learning curves. replay: new items of the replay buffers, empty without one.
    replay_first: number of the oldest segment that the buffers still held at the start. samples: environment steps of
    all pods. seconds: duration on the shard; scoring_seconds: the part of it that scoring took.
    """

    group: int
    number: int
    scores: tuple[Score, ...]
    equity: Floats
    returns: Mapping[str, Floats]
    agents: tuple[AgentSnapshot, ...]
    rows: Sequence[CurveRow] = ()
    replay: Mapping[str, Tensor] = field(default_factory=dict)
    replay_first: int = 0
    samples: int = 0
    seconds: float = 0.0
    scoring_seconds: float = 0.0

    @property
    def key(self) -> tuple[int, int]:
        return self.group, self.number


def join_segments(segments: Sequence[ReplaySegment], items: int) -> tuple[dict[str, Tensor], int]:
    """Replay buffers of at most `items` items: the newest items and the counts, and the number of the first segment.

    Raises RunError if a segment is missing.
    """
    counts = segments[-1].items[COUNTS]
    count = min(int(counts[0]), items)
    names = [name for name in segments[-1].items if name != COUNTS]
    sizes = [segment.items[names[0]].shape[1] for segment in segments]
    first = len(segments) - 1
    while first and sum(sizes[first:]) < count:
        first -= 1
    if sum(sizes[first:]) < count:
        raise RunError(
            f"the run lacks the replay items of assignment {segments[0].number - 1}; restore them or start a new run"
        )
    newest_segments = segments[first:]
    tensors = {name: torch.cat([segment.items[name] for segment in newest_segments], 1)[:, -count:] for name in names}
    return {COUNTS: counts, **tensors}, newest_segments[0].number
