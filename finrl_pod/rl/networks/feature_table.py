"""The market table as look-back networks read it: the last L rows of each decision bar, once a distinct bar.

Only rows up to the decision bar are read. Rows before the first bar are zero and marked as not tradable, as are assets
that were not listed yet.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from finrl_pod.random import RandomSource
from finrl_pod.types import Tensor


class PastRows(NamedTuple):
    """Look-back windows of K items for each of R networks: D distinct windows, and which of them each item reads.

    table: [rows, N, F + 1], features and a last column that is 1 where the asset is tradable, else 0; its features are
    0 there. starts: [R, D] int64, first row of each window. position: [R, K] int64, window of each item; None if D = K
    and every item has its own. lookback: L, rows of a window. keep: [R, C] factors of the codes (dropout), None for 1.
    """

    table: Tensor
    starts: Tensor
    position: Tensor | None
    lookback: int
    keep: Tensor | None = None

    def windows(self, first: int, last: int) -> Tensor:
        """Windows first to last - 1 of each network: [R, last - first, L, N, F + 1]."""
        starts = self.starts[:, first:last]
        rows = starts.unsqueeze(-1) + torch.arange(self.lookback, device=starts.device)  # [R, D, L]
        picked = self.table.index_select(0, rows.reshape(-1))
        return picked.view(*rows.shape, *self.table.shape[1:])

    def of_items(self, codes: Tensor) -> Tensor:
        """Codes of the windows [R, D, N, C] as codes of the items [R, K, N, C]."""
        if self.position is None:
            return codes
        r, d, n, c = codes.shape
        flat = self.position + torch.arange(r, device=codes.device).unsqueeze(1) * d
        return codes.reshape(r * d, n * c).index_select(0, flat.reshape(-1)).view(r, -1, n, c)

    def copies(self, count: int) -> PastRows:
        """Repeated for `count` networks of each member, the copies of a row next to each other."""
        starts, position, keep = (
            None if x is None else x.repeat_interleave(count, 0) for x in (self.starts, self.position, self.keep)
        )
        assert starts is not None
        return self._replace(starts=starts, position=position, keep=keep)


class FeatureTable:
    """Features [T, N, F] and the mask of tradable assets [T, N], preceded by L - 1 rows of zeros."""

    def __init__(self, features: Tensor, tradable: Tensor, lookback: int) -> None:
        self.table, self.lookback = rows_with_mask(features, tradable, lookback - 1), lookback
        self.keep: Tensor | None = None  # factors of the codes while training, see `dropout_factors`

    def past(self, bar: Tensor) -> PastRows:
        """Look-back windows of bars [P, K]."""
        starts, position = distinct(bar)  # the window of bar t starts at row t, because L - 1 rows precede bar 0
        return PastRows(self.table, starts, position, self.lookback, self.keep)


def rows_with_mask(features: Tensor, tradable: Tensor, before: int) -> Tensor:
    """Table [before + T, N, F + 1] of features [T, N, F] and the mask [T, N], behind `before` rows of zeros."""
    mask = tradable.unsqueeze(-1)
    rows = torch.cat([torch.where(mask, features, 0.0), mask.to(features.dtype)], -1)
    return torch.cat([rows.new_zeros(before, *rows.shape[1:]), rows])


def past_of_windows(features: Tensor, tradable: Tensor | None, lookback: int) -> PastRows:
    """Windows of features [P, K, B, N, F] and masks [P, K, B, N] whose last row is the decision bar; B at most L."""
    p, k, bars, n, f = features.shape
    if tradable is None:
        tradable = torch.ones(p, k, bars, n, dtype=torch.bool, device=features.device)
    rows = rows_with_mask(features.reshape(-1, n, f), tradable.reshape(-1, n), 0).view(p * k, bars, n, f + 1)
    padded = torch.cat([rows.new_zeros(p * k, lookback - bars, n, f + 1), rows], 1)
    starts = torch.arange(p * k, device=features.device).view(p, k) * lookback
    return PastRows(padded.view(-1, n, f + 1), starts, None, lookback)


def distinct(bar: Tensor) -> tuple[Tensor, Tensor | None]:
    """Distinct values of each row of [P, K]: ([P, D], the position of each item's value [P, K], or None if D = K).

    D is the most of any row; rows with fewer are filled with their smallest value.
    """
    ordered, order = bar.sort(1)
    rank = torch.zeros_like(bar)
    rank[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(1)
    count = int(rank[:, -1].max()) + 1
    if count == bar.shape[1]:
        return bar, None
    position = torch.empty_like(bar).scatter_(1, order, rank)
    return ordered[:, :1].repeat(1, count).scatter_(1, rank, ordered), position


def dropout_factors(source: RandomSource | None, size: int, rate: float, like: Tensor) -> Tensor | None:
    """Factors [P, size] of codes: 0 with probability `rate`, else 1 / (1 - rate); None without a source or rate.

    Whole channels are dropped, the same at all rows and assets (Tompson et al. 2015; Gal and Ghahramani 2016), and for
    a whole iteration: the policy that collects a rollout is then the one whose gradient is taken.
    """
    if source is None or not rate:
        return None
    drawn = source.uniform((size,), like.dtype)
    return (drawn >= rate).to(like.dtype) / (1 - rate)
