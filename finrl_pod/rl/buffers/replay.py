"""Experience that is learned from again: a ring of items for each member, bounded, its size known before it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from finrl_pod.errors import ConfigError, RunError
from finrl_pod.memory import available_bytes
from finrl_pod.types import Tensor

Fields = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
GIB = 2**30


class Replay:
    """[P, C, ...] tensors by name, written in a ring. What was written first is overwritten first.

    written: items a member has ever written; count: how many of them are there.
    """

    def __init__(
        self,
        fields: Fields,
        members: int,
        capacity: int,
        device: torch.device,
        accounts: int = 1,
        *,
        setting: str = "agent.buffer_size",
        what: str = "transitions",
    ) -> None:
        """fields: name -> (shape of an item, dtype). capacity: items a member. accounts: transitions of an item.

        setting, what: what sets the capacity, and what it counts.

        Raises ConfigError, before anything is allocated, when it would not fit into memory.
        """
        size = members * capacity * sum(math.prod(shape) * dtype.itemsize for shape, dtype in fields.values())
        free = available_bytes(device)
        if size > free:
            raise ConfigError(
                f"{setting} of {capacity * accounts:,} {what} for {members} "
                f"member{'s' if members > 1 else ''} takes {size / GIB:.1f} GiB and {free / GIB:.1f} GiB are free; "
                f"lower it to {int(capacity * accounts * free * 0.8 / size):,} or less"
            )
        self.members, self.capacity, self.written = members, capacity, 0
        self.data = {
            name: torch.zeros(members, capacity, *shape, dtype=dtype, device=device)
            for name, (shape, dtype) in fields.items()
        }

    @property
    def count(self) -> int:
        """Items of a member that can be learned from."""
        return min(self.written, self.capacity)

    def add(self, items: Mapping[str, Tensor]) -> None:
        """Write name -> [P, n, ...], n at most the capacity."""
        n = next(iter(items.values())).shape[1]
        start = self.written % self.capacity
        fits = min(n, self.capacity - start)
        for name, field in self.data.items():
            values = items[name]
            field[:, start : start + fits] = values[:, :fits]
            if fits < n:
                field[:, : n - fits] = values[:, fits:]
        self.written += n

    def take(self, chosen: Tensor) -> dict[str, Tensor]:
        """Items by their places: chosen [U, P, K] -> name -> [U, P, K, ...]."""
        u, p, k = chosen.shape
        if p == 1:
            places = chosen.reshape(-1)
            return {name: x[0].index_select(0, places).view(u, 1, k, *x.shape[2:]) for name, x in self.data.items()}
        member = torch.arange(p, device=chosen.device).view(1, p, 1)
        return {name: x[member, chosen] for name, x in self.data.items()}

    def latest(self, items: int) -> dict[str, Tensor]:
        """Copies of the last so many items, oldest first: name -> [P, n, ...]."""
        n = min(items, self.count)
        places = torch.arange(self.written - n, self.written) % self.capacity
        return {name: x[:, places.to(x.device)] for name, x in self.data.items()}

    def load(self, items: Mapping[str, Tensor], written: int) -> None:
        """What `latest` gave of a replay that had written so many. Raises RunError when the shapes are others."""
        for name, field in self.data.items():
            values = items.get(name)
            if values is None or values.shape[0] != self.members or values.shape[2:] != field.shape[2:]:
                got = "nothing" if values is None else f"shape {tuple(values.shape)}"
                raise RunError(f"a saved replay does not fit this agent: {name} has {got}")
        n = items[next(iter(self.data))].shape[1]
        if n != min(written, self.capacity):
            raise RunError(
                f"a saved replay does not fit this agent: it holds {n} items where {min(written, self.capacity)} "
                "are wanted; use the agent.buffer_size it was made with"
            )
        self.written = written - n
        self.add({name: items[name].to(field) for name, field in self.data.items()})
