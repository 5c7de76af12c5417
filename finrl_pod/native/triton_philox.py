"""Triton kernel of `philox.py`, next to its torch version. Imported only where Triton is installed."""

# Triton has no type hints, and its kernels take none.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-untyped"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _circle(share):
    """Cosine and sine of a share of a full turn, 0 to 1, by their series within an eighth of it.

    CUDA reduces angles of any size, in memory that is local to a thread; registers spill.
    """
    quarter = tl.floor(4 * share + 0.5)
    turn: tl.constexpr = 6.283185307179586
    x = (share - quarter * 0.25) * turn
    y = x * x
    sine = 1 - y * (1 / 156) * (1 - y * (1 / 210))
    sine = 1 - y * (1 / 42) * (1 - y * (1 / 72) * (1 - y * (1 / 110) * sine))
    sine = x * (1 - y * (1 / 6) * (1 - y * (1 / 20) * sine))
    cosine = 1 - y * (1 / 132) * (1 - y * (1 / 182))
    cosine = 1 - y * (1 / 30) * (1 - y * (1 / 56) * (1 - y * (1 / 90) * cosine))
    cosine = 1 - y * (1 / 2) * (1 - y * (1 / 12) * cosine)
    is_odd = (quarter == 1) | (quarter == 3)
    x_sign = tl.where((quarter == 1) | (quarter == 2), x * 0 - 1, x * 0 + 1)
    y_sign = tl.where((quarter == 2) | (quarter == 3), x * 0 - 1, x * 0 + 1)
    return x_sign * tl.where(is_odd, sine, cosine), y_sign * tl.where(is_odd, cosine, sine)


@triton.jit
def philox(keys, counts, numbers_out, n, blocks, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Numbers [P, n] of keys and counts [P]; a program computes BLOCK counters, one of the `blocks` of a member."""
    program = tl.program_id(0)
    member = (program // blocks).to(tl.int64)
    i = (program % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + member)
    count = tl.load(counts + member) + i * 0
    a, b, c, d = tl.philox(
        key,
        (i & 0xFFFFFFFF).to(tl.uint32),
        (i >> 32).to(tl.uint32),
        (count & 0xFFFFFFFF).to(tl.uint32),
        ((count >> 32) & 0xFFFFFFFF).to(tl.uint32),
    )
    dtype = numbers_out.dtype.element_ty
    if KIND == "words":
        w = a.to(dtype)
        x = b.to(dtype)
        y = c.to(dtype)
        z = d.to(dtype)
    elif KIND == "uniform":
        scale = 1.0 / 16777216.0  # 2^-24
        w = (a >> 8).to(dtype) * scale
        x = (b >> 8).to(dtype) * scale
        y = (c >> 8).to(dtype) * scale
        z = (d >> 8).to(dtype) * scale
    else:
        # Triton makes a float32 tensor of a number that is assigned without constexpr.
        unit: tl.constexpr = 1.0 / 4294967296.0
        first = tl.sqrt(-2 * tl.log(a.to(dtype) * unit + unit / 2))
        second = tl.sqrt(-2 * tl.log(c.to(dtype) * unit + unit / 2))
        cosine, sine = _circle(b.to(dtype) * unit)
        w = first * cosine
        x = first * sine
        cosine, sine = _circle(d.to(dtype) * unit)
        y = second * cosine
        z = second * sine
    to = numbers_out + member * n + 4 * i
    tl.store(to, w, mask=4 * i < n)
    tl.store(to + 1, x, mask=4 * i + 1 < n)
    tl.store(to + 2, y, mask=4 * i + 2 < n)
    tl.store(to + 3, z, mask=4 * i + 3 < n)
