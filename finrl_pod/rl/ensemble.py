"""What an ensemble of critics makes of its members' values."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from finrl_pod.types import Tensor


def combined(values: Tensor, rule: str, chosen: Tensor | None = None) -> Tensor:
    """values [P, M, ...] -> [P, ...]: "min", "mean", or for "subset" the minimum over `chosen` [P, S] of the M."""
    if rule == "mean":
        return values.mean(1)
    if rule == "subset":
        assert chosen is not None
        places = chosen.view(*chosen.shape, *[1] * (values.dim() - 2)).expand(-1, -1, *values.shape[2:])
        values = values.gather(1, places)
    return values.amin(1)


def draw_subsets(streams: Sequence[torch.Generator], critics: int, size: int, device: torch.device) -> Tensor:
    """For each member, `size` different critics out of all, every subset as likely as any other: [P, size]."""
    each = [torch.randperm(critics, generator=stream, device=device)[:size] for stream in streams]
    return torch.stack(each)
