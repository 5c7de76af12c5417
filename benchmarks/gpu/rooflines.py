"""What a device could reach at most: the rate at which it moves the counted bytes, computes, or launches kernels."""

from __future__ import annotations

from typing import Literal, NamedTuple

from benchmarks.gpu.launches import Recording

# One H100 SXM (NVIDIA's data sheet): memory bandwidth, and float32 outside the tensor cores.
BYTES_PER_SECOND = 3.35e12
FLOPS_PER_SECOND = 67e12
SECONDS_PER_LAUNCH = 3e-6  # of a kernel that is not part of a graph; an assumption until a device is measured

Bound = Literal["bytes", "flops", "launches"]


class Roofline(NamedTuple):
    """The counted costs of a piece of work, and the rate that they allow at best.

    bytes, flops, launches: totals. samples: environment steps. bound: what takes longest. seconds: its time.
    goal: samples per second in the table of goals.
    """

    name: str
    samples: int
    bytes: int
    flops: int
    launches: int
    bound: Bound
    seconds: float
    samples_per_second: float
    goal: float


def roofline(name: str, recording: Recording, samples: int, goal: float) -> Roofline:
    """The roofline of a recorded piece of work."""
    launches = len(recording.launches)
    seconds: dict[Bound, float] = {
        "bytes": recording.moved_bytes / BYTES_PER_SECOND,
        "flops": recording.flops / FLOPS_PER_SECOND,
        "launches": launches * SECONDS_PER_LAUNCH,
    }
    bound = max(seconds, key=lambda name: seconds[name])
    rate = samples / seconds[bound]
    return Roofline(
        name, samples, recording.moved_bytes, recording.flops, launches, bound, seconds[bound], round(rate), round(goal)
    )
