"""Look-back encoders: a code of the last L rows of an asset of features, shared over assets and causal by construction.

A code stands beside the features of the decision bar as C further inputs of policies, actors, critics and Q-networks.
It depends on rows up to the decision bar only, and is computed once for each distinct bar.
The number and the order of the assets do not matter. Codes of assets that cannot be traded are 0. Rows before the first
bar are zero and marked as not tradable, as are assets that were not listed yet.

Shapes: R networks, D distinct bars, L rows of a window, N assets, I inputs (F features and the mask), C numbers of a
code.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from finrl_pod.random import RandomSource
from finrl_pod.rl.networks.layers import Params, affine, product, select_items, uniform
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.types import Tensor

MAX_HEADS = 4  # of the attention
CHUNK_NUMBERS = 4_000_000  # of windows that are encoded at once where no gradient is needed
MASKED_SCORE = -1e9


# ---------------------------------------------------------------------- windows of the market table


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
        table_rows = self.table.index_select(0, rows.reshape(-1))
        return table_rows.view(*rows.shape, *self.table.shape[1:])

    def of_items(self, codes: Tensor) -> Tensor:
        """Codes of the windows [R, D, N, C] as codes of the items [R, K, N, C]."""
        return codes if self.position is None else select_items(codes, self.position)

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
        self.table = rows_with_mask(features, tradable, lookback - 1)
        self.lookback = lookback
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


def dropout_factors(source: RandomSource | None, size: int, rate: float, like: Tensor) -> Tensor | None:
    """Factors [P, size] of codes: 0 with probability `rate`, else 1 / (1 - rate); None without a source or rate.

    Whole channels are dropped, the same at all rows and assets (Tompson et al. 2015; Gal and Ghahramani 2016), and for
    a whole iteration: the policy that collects a rollout is then the one whose gradient is taken.
    """
    if source is None or not rate:
        return None
    draws = source.uniform((size,), like.dtype)
    return (draws >= rate).to(like.dtype) / (1 - rate)


# ---------------------------------------------------------------------- encoders
# `encode` returns codes [R, D, N, C] of windows [R, D, L, N, I]; the last input is the mask.


class Convolution:
    """Dilated causal convolutions (van den Oord et al. 2016, arXiv:1609.03499): kernels of 2, dilations 1, 2, 4, ..

        y_0 = tanh(A x[t - 1] + B x[t] + b),   y_i = y_{i-1}[t] + tanh(A_i y_{i-1}[t - 2^i] + B_i y_{i-1}[t] + b_i)

    Only the outputs that the last row depends on are computed: half as many in each layer as in the one before. A
    window whose length is no power of two is preceded by zeros.
    """

    def __init__(self, inputs: int, lookback: int, size: int) -> None:
        self.inputs = inputs
        self.size = size
        self.layers = max(1, math.ceil(math.log2(lookback)))

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Params:
        tensors = {}
        for i in range(self.layers):
            inputs = 2 * (self.size if i else self.inputs)
            tensors[f"w{i}"] = uniform(inputs, self.size, inputs, generator, dtype)
            tensors[f"b{i}"] = torch.zeros(self.size, dtype=dtype)
        return tensors

    def encode(self, params: Params, windows: Tensor) -> Tensor:
        r, d, rows, n, _ = windows.shape
        x = windows
        before = 2**self.layers - rows
        if before:
            x = torch.nn.functional.pad(windows, (0, 0, 0, 0, before, 0))
        for i in range(self.layers):
            pairs = x.reshape(r, d, -1, 2, n, x.shape[-1]).transpose(3, 4)  # [R, D, L / 2, N, 2, I]
            y = torch.tanh(affine(pairs.reshape(r, d, -1, n, 2 * x.shape[-1]), params[f"w{i}"], params[f"b{i}"]))
            x = x[:, :, 1::2] + y if i else y  # [R, D, L / 2, N, C]
        return x[:, :, 0]


class GatedRecurrence:
    """A gated recurrent unit (Cho et al. 2014, arXiv:1406.1078) over the window, in the form of `torch.nn.GRU`.

    The state starts at 0 and stays as it is at rows where the asset cannot be traded.
    """

    def __init__(self, inputs: int, lookback: int, size: int) -> None:  # noqa: ARG002  any length
        self.inputs = inputs
        self.size = size

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Params:
        c = self.size
        return {
            "input_w": uniform(self.inputs, 3 * c, c, generator, dtype),
            "input_b": uniform(1, 3 * c, c, generator, dtype)[0],
            "state_w": uniform(c, 3 * c, c, generator, dtype),
            "state_b": uniform(1, 3 * c, c, generator, dtype)[0],
        }

    def encode(self, params: Params, windows: Tensor) -> Tensor:
        r, d, rows, n, _ = windows.shape
        x = windows.transpose(1, 2).reshape(r, rows, d * n, self.inputs)
        gates = affine(x, params["input_w"], params["input_b"])  # [R, L, D N, 3 C]: reset, update, candidate
        state = x.new_zeros(r, d * n, self.size)
        for row, is_known in zip(gates.unbind(1), x[..., -1:].unbind(1), strict=True):
            own = affine(state, params["state_w"], params["state_b"])
            (to_reset, to_update, fresh) = row.chunk(3, -1)
            (reset, update, own_candidate) = own.chunk(3, -1)
            candidate = torch.tanh(torch.addcmul(fresh, torch.sigmoid(to_reset + reset), own_candidate))
            share = torch.sigmoid(-(to_update + update)) * is_known  # by which the state moves
            state = torch.lerp(state, candidate, share)
        return state.view(r, d, n, self.size)


class Attention:
    """Attention (Vaswani et al. 2017, arXiv:1706.03762) of the decision bar over the rows of its window.

        code = tanh(W concat_h(sum_l a_hl v_hl) + S x_L + b),   a_h = softmax over l of q_h . k_hl / sqrt(C / heads)

    with queries from the last row, and keys and values from every row and its learned position. Rows at which the asset
    cannot be traded get no weight.
    """

    def __init__(self, inputs: int, lookback: int, size: int) -> None:
        self.inputs = inputs
        self.rows = lookback
        self.size = size
        self.heads = math.gcd(MAX_HEADS, size)

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Params:
        i = self.inputs
        c = self.size
        return {
            "query_w": uniform(i, c, i, generator, dtype),
            "query_b": torch.zeros(c, dtype=dtype),
            "memory_w": uniform(i, 2 * c, i, generator, dtype),
            "position_w": uniform(self.rows, 2 * c, 2 * c, generator, dtype),
            "mix_w": uniform(c, c, c, generator, dtype),
            "last_w": uniform(i, c, i, generator, dtype),
            "last_b": torch.zeros(c, dtype=dtype),
        }

    def encode(self, params: Params, windows: Tensor) -> Tensor:
        r, d, rows, n, i = windows.shape
        h = self.heads
        c = self.size // self.heads
        last = windows[:, :, -1]  # [R, D, N, I]
        query = affine(last, params["query_w"], params["query_b"]).view(r, d * n, h, c)
        query = query.transpose(1, 2)  # [R, H, B, C / H]
        of_key, of_value = params["memory_w"].view(r, i, 2, h, c).permute(2, 0, 3, 1, 4)  # [R, H, I, C / H]
        at_key, at_value = params["position_w"].view(r, rows, 2, h, c).permute(2, 0, 3, 1, 4)  # [R, H, L, C / H]
        # Keys and values are linear in the rows: matrices act on the query and on the average, not on every row.
        x = windows.transpose(2, 3).reshape(r, d * n, rows, i)
        by_input = (query @ of_key.transpose(2, 3)).transpose(1, 2)  # [R, B, H, I]
        scores = by_input @ x.transpose(2, 3) + (query @ at_key.transpose(2, 3)).transpose(1, 2)  # [R, B, H, L]
        is_known = x[..., -1].unsqueeze(2) > 0
        weights = torch.softmax(torch.where(is_known, scores / math.sqrt(c), MASKED_SCORE), -1)
        averages = (weights @ x).transpose(1, 2)
        shares = weights.transpose(1, 2)  # [R, H, B, I], [R, H, B, L]
        attention_value = averages @ of_value + shares @ at_value  # [R, H, B, C / H]
        mixed_heads = product(attention_value.transpose(1, 2).reshape(r, d, n, self.size), params["mix_w"])
        return torch.tanh(mixed_heads + affine(last, params["last_w"], params["last_b"]))


class LookbackEncoder:
    """The encoder of a specification. Its parameters follow the prefix and "lookback_"."""

    def __init__(self, spec: PolicySpec, prefix: str = "") -> None:
        self.spec = spec
        self.prefix = f"{prefix}lookback_"
        inputs = spec.features + 1
        size = spec.encoder_size
        kinds: dict[str, type[Convolution] | type[GatedRecurrence] | type[Attention]] = {
            "convolution": Convolution,
            "gru": GatedRecurrence,
            "attention": Attention,
        }
        self.encoder = kinds[spec.encoder](inputs, spec.lookback, size)

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Params:
        """Initial tensors of one network."""
        return {f"{self.prefix}{name}": x for name, x in self.encoder.init(generator, dtype).items()}

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
        own = {name.removeprefix(self.prefix): x for name, x in params.items() if name.startswith(self.prefix)}
        networks, count = past.starts.shape
        size = count
        if not torch.is_grad_enabled():
            size = max(1, CHUNK_NUMBERS // (networks * past.lookback * past.table[0].numel()))
        parts = []
        for first in range(0, count, size):
            windows = past.windows(first, min(first + size, count))
            parts.append(self.encoder.encode(own, windows) * windows[:, :, -1, :, -1:])
        codes = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return codes if past.keep is None else codes * past.keep.view(networks, 1, 1, -1)


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

    def drop(self, keep: Tensor | None) -> None:
        """Multiply codes by `keep` [P, C] from now on; None: by 1."""
        if self._table is not None:
            self._table.keep = keep

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
