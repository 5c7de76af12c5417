"""What the slots of a cohort keep from generation to generation: the replay, on disk in one segment a generation.

A segment holds what the slots saw in its generation and is never changed. A generation starts from the segments of
those before it, whether the run was interrupted or not.
"""

from __future__ import annotations

import torch

from finrl_pod.errors import RunError
from finrl_pod.pod.run_directory import RunDirectory
from finrl_pod.types import Tensor

COUNTS = "counts"  # of what was ever written and seen; the segments' tensors are [P, n, ...]


def load(run: RunDirectory, cohort: int, generation: int, items: int) -> tuple[dict[str, Tensor], int] | None:
    """The replay as it was after a generation: its last `items` items and counts, and the first generation in it.

    None where nothing was kept. Raises RunError when a segment is missing.
    """
    newest = run.replay(generation, cohort)
    if newest is None:
        return None
    counts = newest.pop(COUNTS)
    wanted, first, parts = min(int(counts[0]), items), generation, [newest]
    while sum(_length(part) for part in parts) < wanted:
        first -= 1
        older = run.replay(first, cohort)
        if older is None:
            raise RunError(f"the run in {run.path} lacks the replay of generation {first}; restore it or start anew")
        older.pop(COUNTS)
        parts.insert(0, older)
    joined = {name: torch.cat([part[name] for part in parts], 1)[:, -wanted:] for name in newest}
    return {COUNTS: counts, **joined}, first


def _length(segment: dict[str, Tensor]) -> int:
    return next(iter(segment.values())).shape[1]
