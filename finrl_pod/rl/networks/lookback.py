"""Look-back encoders: a code of the last L rows of an asset of features, shared over assets and causal by construction.

A code stands beside the features of the decision bar as C further inputs of a network. It is computed once for each
distinct bar. Codes of assets that cannot be traded are 0; rows before the first bar are zero and not tradable.

Shapes: R networks, D distinct bars, L rows of a window, N assets, I inputs (F features and the mask), C numbers of a
code.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from finrl_pod.rl.networks.layers import Params, affine, select_items, uniform
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.types import Tensor

CHUNK_NUMBERS = 4_000_000  # of windows that are encoded at once where no gradient is needed


class PastRows(NamedTuple):
    """Look-back windows of K items for each of R networks: D distinct windows, and which of them each item reads.

    table: [rows, N, F + 1], features and a last column that is 1 where the asset is tradable, else 0; its features are
    0 there. starts: [R, D] int64, first row of each window. position: [R, K] int64, window of each item; None if D = K
    and every item has its own. lookback: L, rows of a window.
    """

    table: Tensor
    starts: Tensor
    position: Tensor | None
    lookback: int

    def windows(self, first: int, last: int) -> Tensor:
        """Windows first to last - 1 of each network: [R, last - first, L, N, F + 1]."""
        starts = self.starts[:, first:last]
        rows = starts.unsqueeze(-1) + torch.arange(self.lookback, device=starts.device)  # [R, D, L]
        table_rows = self.table.index_select(0, rows.reshape(-1))
        return table_rows.view(*rows.shape, *self.table.shape[1:])

    def of_items(self, codes: Tensor) -> Tensor:
        """Codes of the windows [R, D, N, C] as codes of the items [R, K, N, C]."""
        return codes if self.position is None else select_items(codes, self.position)

    def copies(self, count: int) -> PastRows:
        """Repeated for `count` networks of each member, the copies of a row next to each other."""
        position = None if self.position is None else self.position.repeat_interleave(count, 0)
        return self._replace(starts=self.starts.repeat_interleave(count, 0), position=position)


class FeatureTable:
    """Features [T, N, F] and the mask of tradable assets [T, N], preceded by L - 1 rows of zeros."""

    def __init__(self, features: Tensor, tradable: Tensor, lookback: int) -> None:
        self.table = rows_with_mask(features, tradable, lookback - 1)
        self.lookback = lookback

    def past(self, bar: Tensor) -> PastRows:
        """Look-back windows of bars [P, K]."""
        starts, position = distinct(bar)  # the window of bar t starts at row t, because L - 1 rows precede bar 0
        return PastRows(self.table, starts, position, self.lookback)


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
    windows = torch.cat([rows.new_zeros(p * k, lookback - bars, n, f + 1), rows], 1)
    starts = torch.arange(p * k, device=features.device).view(p, k) * lookback
    return PastRows(windows.view(-1, n, f + 1), starts, None, lookback)


def distinct(bar: Tensor) -> tuple[Tensor, Tensor | None]:
    """Distinct values of each row of [P, K]: ([P, D], the position of the value of each item [P, K], or None if D = K).

    D is the most of any row; rows with fewer are filled with their smallest value.
    """
    sorted_bars, order = bar.sort(1)
    rank = torch.zeros_like(bar)
    rank[:, 1:] = (sorted_bars[:, 1:] != sorted_bars[:, :-1]).cumsum(1)
    count = int(rank[:, -1].max()) + 1
    if count == bar.shape[1]:
        return bar, None
    position = torch.empty_like(bar).scatter_(1, order, rank)
    return sorted_bars[:, :1].repeat(1, count).scatter_(1, rank, sorted_bars), position


class LookbackEncoder:
    """A gated recurrent unit (Cho et al. 2014, arXiv:1406.1078) over the window, in the form of `torch.nn.GRU`.

    The state starts at 0 and stays as it is at rows where the asset cannot be traded. Names of parameters begin with
    the prefix and "lookback_".
    """

    def __init__(self, spec: PolicySpec, prefix: str = "") -> None:
        self.spec = spec
        self.prefix = f"{prefix}lookback_"

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Params:
        """Initial tensors of one network."""
        c = self.spec.encoder_size
        tensors = {
            "input_w": uniform(self.spec.features + 1, 3 * c, c, generator, dtype),
            "input_b": uniform(1, 3 * c, c, generator, dtype)[0],
            "state_w": uniform(c, 3 * c, c, generator, dtype),
            "state_b": uniform(1, 3 * c, c, generator, dtype)[0],
        }
        return {f"{self.prefix}{name}": x for name, x in tensors.items()}

    def join(self, params: Params, features: Tensor, past: PastRows) -> Tensor:
        """Features [R, K, N, F] of the decision bars, with the codes of their windows: [R, K, N, F + C]."""
        return torch.cat([features, past.of_items(self.codes(params, past))], -1)

    def join_windows(self, params: Params, features: Tensor, tradable: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """`join`, and the mask [R, K, N], for windows of B <= L rows.

        features: [R, K, B, N, F]; tradable: [R, K, B, N] bool or None.
        """
        past = past_of_windows(features, tradable, self.spec.lookback)
        return self.join(params, features[:, :, -1], past), None if tradable is None else tradable[:, :, -1]

    def codes(self, params: Params, past: PastRows) -> Tensor:
        """Codes of the distinct windows [R, D, N, C]."""
        networks, count = past.starts.shape
        size = count
        if not torch.is_grad_enabled():
            size = max(1, CHUNK_NUMBERS // (networks * past.lookback * past.table[0].numel()))
        parts = []
        for first in range(0, count, size):
            windows = past.windows(first, min(first + size, count))
            parts.append(self.encode(params, windows) * windows[:, :, -1, :, -1:])
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def encode(self, params: Params, windows: Tensor) -> Tensor:
        """Last states [R, D, N, C] of windows [R, D, L, N, I], whose last input is the mask."""
        input_w, input_b, state_w, state_b = (
            params[f"{self.prefix}{name}"] for name in ("input_w", "input_b", "state_w", "state_b")
        )
        r, d, rows, n, inputs = windows.shape
        x = windows.transpose(1, 2).reshape(r, rows, d * n, inputs)
        gates = affine(x, input_w, input_b)  # [R, L, D N, 3 C]: reset, update, candidate
        state = x.new_zeros(r, d * n, self.spec.encoder_size)
        for row, is_known in zip(gates.unbind(1), x[..., -1:].unbind(1), strict=True):
            own = affine(state, state_w, state_b)
            (to_reset, to_update, fresh) = row.chunk(3, -1)
            (reset, update, own_candidate) = own.chunk(3, -1)
            candidate = torch.tanh(torch.addcmul(fresh, torch.sigmoid(to_reset + reset), own_candidate))
            share = torch.sigmoid(-(to_update + update)) * is_known  # by which the state moves
            state = torch.lerp(state, candidate, share)
        return state.view(r, d, n, -1)


def make_lookback_encoder(spec: PolicySpec, prefix: str = "") -> LookbackEncoder | None:
    """The encoder of a specification; None if it has none."""
    return None if spec.encoder == "none" else LookbackEncoder(spec, prefix)


class PolicyInputs:
    """What a policy reads of a market table: features and, if there is an encoder, codes of its actor or critic.

    Actor and critic have an encoder each; its parameters are part of the policy parameters.
    """

    def __init__(self, spec: PolicySpec, features: Tensor, tradable: Tensor | None) -> None:
        """features: [T, N, F]; tradable: [T, N] bool, or None if every asset always is."""
        self.features = features
        self.tradable = tradable
        self._encoders = (make_lookback_encoder(spec), make_lookback_encoder(spec, "value_"))
        self._table = None
        if self._encoders[0] is not None:
            every = torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
            self._table = FeatureTable(features, every if tradable is None else tradable, spec.lookback)

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Params:
        """Initial parameters of the encoders of one member."""
        return {
            name: x for each in self._encoders if each is not None for name, x in each.init(generator, dtype).items()
        }

    def rows(self, bar: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows of the table for bars [P, K]: features [P, K, N, F] and the mask [P, K, N] or None."""
        return self.features[bar], None if self.tradable is None else self.tradable[bar]

    def of_actor(self, params: Params, bar: Tensor) -> tuple[Tensor, Tensor | None]:
        """`rows` with the codes of the actor encoder: features [P, K, N, F + C]."""
        return self._join(self._encoders[0], params, bar)

    def of_critic(self, params: Params, bar: Tensor) -> tuple[Tensor, Tensor | None]:
        """`rows` with the codes of the critic encoder: features [P, K, N, F + C]."""
        return self._join(self._encoders[1], params, bar)

    def _join(self, encoder: LookbackEncoder | None, params: Params, bar: Tensor) -> tuple[Tensor, Tensor | None]:
        features, tradable = self.rows(bar)
        if encoder is None or self._table is None:
            return features, tradable
        return encoder.join(params, features, self._table.past(bar)), tradable
