"""Replay buffer: a ring of items for each member, allocated once."""

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
    """Ring buffer of [P, C, ...] tensors by name; the oldest items are overwritten.

    written: items ever written for each member; count: items available.
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
        """fields: name -> (shape of an item, dtype). capacity: items per member. accounts: transitions in an item.

        setting, what: name of the capacity setting and the unit it counts, for error messages.

        Raises ConfigError before allocating if the buffer does not fit into memory.
        """
        size = members * capacity * sum(math.prod(shape) * dtype.itemsize for shape, dtype in fields.values())
        free = available_bytes(device)
        if size > free:
            raise ConfigError(
                f"{setting} of {capacity * accounts:,} {what} for {members} "
                f"member{'s' if members > 1 else ''} takes {size / GIB:.1f} GiB, {free / GIB:.1f} GiB are free; "
                f"lower it to {int(capacity * accounts * free * 0.8 / size):,} or less"
            )
        self.members = members
        self.capacity = capacity
        self.written = 0
        self.data = {
            name: torch.zeros(members, capacity, *shape, dtype=dtype, device=device)
            for name, (shape, dtype) in fields.items()
        }

    @property
    def count(self) -> int:
        """Items available for each member."""
        return min(self.written, self.capacity)

    def add(self, items: Mapping[str, Tensor]) -> None:
        """Append name -> [P, n, ...]; n must not exceed the capacity."""
        n = next(iter(items.values())).shape[1]
        start = self.written % self.capacity
        fits = min(n, self.capacity - start)
        for name, field in self.data.items():
            values = items[name]
            field[:, start : start + fits] = values[:, :fits]
            if fits < n:
                field[:, : n - fits] = values[:, fits:]
        self.written += n

    def take(self, indices: Tensor) -> dict[str, Tensor]:
        """Items at indices [U, P, K]: name -> [U, P, K, ...]."""
        u, p, k = indices.shape
        if p == 1:
            places = indices.reshape(-1)
            return {name: x[0].index_select(0, places).view(u, 1, k, *x.shape[2:]) for name, x in self.data.items()}
        member = torch.arange(p, device=indices.device).view(1, p, 1)
        return {name: x[member, indices] for name, x in self.data.items()}

    def latest(self, items: int) -> dict[str, Tensor]:
        """Copies of the last `items` items, oldest first: name -> [P, n, ...]."""
        n = min(items, self.count)
        places = torch.arange(self.written - n, self.written) % self.capacity
        return {name: x[:, places.to(x.device)] for name, x in self.data.items()}

    def load(self, items: Mapping[str, Tensor], written: int) -> None:
        """Restore the result of `latest` of a buffer with `written` items. Raises RunError if it does not fit."""
        for name, field in self.data.items():
            values = items.get(name)
            if values is None or values.shape[0] != self.members or values.shape[2:] != field.shape[2:]:
                saved_shape = "nothing" if values is None else f"shape {tuple(values.shape)}"
                raise RunError(f"the saved replay buffer does not fit this agent: {name} has {saved_shape}")
        n = items[next(iter(self.data))].shape[1]
        if n != min(written, self.capacity):
            raise RunError(
                f"the saved replay buffer does not fit this agent: it has {n} items, expected "
                f"{min(written, self.capacity)}; use the agent.buffer_size it was saved with"
            )
        self.written = written - n
        self.add({name: items[name].to(field) for name, field in self.data.items()})
