"""Replay buffers between assignments: each saves the items that its slots collected, and the next joins them again."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from finrl_pod.errors import RunError
from finrl_pod.tournament.assignment import ReplaySegment
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import Tensor

COUNTS = "counts"  # items ever written, samples and updates; the other tensors are [P, n, ...]


def load_segments(run: RunDirectory, group: int, newest: int) -> tuple[ReplaySegment, ...]:
    """Segments of a group up to the one of assignment `newest`, oldest first, without gaps; none without a buffer."""
    segments: list[ReplaySegment] = []
    for number in range(newest, -1, -1):
        items = run.replay(number, group)
        if items is None:
            break
        segments.insert(0, ReplaySegment(number, items))
    return tuple(segments)


def join_segments(segments: Sequence[ReplaySegment], items: int) -> tuple[dict[str, Tensor], int]:
    """Replay buffers of at most `items` items: the newest items and the counts, and the first segment's number.

    Raises RunError if a segment is missing.
    """
    counts = segments[-1].items[COUNTS]
    required, held, used = min(int(counts[0]), items), 0, 0
    for used in range(len(segments) - 1, -1, -1):
        held += _length(segments[used])
        if held >= required:
            break
    else:
        raise RunError(
            f"the run lacks the replay items of assignment {segments[0].number - 1}; restore them or start a new run"
        )
    parts = segments[used:]
    names = [name for name in segments[-1].items if name != COUNTS]
    joined = {name: torch.cat([part.items[name] for part in parts], 1)[:, -required:] for name in names}
    return {COUNTS: counts, **joined}, parts[0].number


def _length(segment: ReplaySegment) -> int:
    return next(x.shape[1] for name, x in segment.items.items() if name != COUNTS)
