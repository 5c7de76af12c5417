"""Triton kernel of `philox.py`, next to its torch version. Imported only where Triton is installed."""

# Triton has no type hints, and its kernels take none.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-untyped"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def philox(keys, counts, out, n, blocks, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Numbers [P, n] of keys and counts [P]; a program computes BLOCK counters, one of the `blocks` of a member."""
    program = tl.program_id(0).to(tl.int64)
    member = program // blocks
    i = program % blocks * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + member)
    count = tl.load(counts + member) + i * 0
    a, b, c, d = tl.philox(
        key,
        (i & 0xFFFFFFFF).to(tl.uint32),
        (i >> 32).to(tl.uint32),
        (count & 0xFFFFFFFF).to(tl.uint32),
        ((count >> 32) & 0xFFFFFFFF).to(tl.uint32),
    )
    dtype = out.dtype.element_ty
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
        turn: tl.constexpr = 6.283185307179586 / 4294967296.0
        first = tl.sqrt(-2 * tl.log(a.to(dtype) * unit + unit / 2))
        second = tl.sqrt(-2 * tl.log(c.to(dtype) * unit + unit / 2))
        w = first * tl.cos(b.to(dtype) * turn)
        x = first * tl.sin(b.to(dtype) * turn)
        y = second * tl.cos(d.to(dtype) * turn)
        z = second * tl.sin(d.to(dtype) * turn)
    to = out + member * n + 4 * i
    tl.store(to, w, mask=4 * i < n)
    tl.store(to + 1, x, mask=4 * i + 1 < n)
    tl.store(to + 2, y, mask=4 * i + 2 < n)
    tl.store(to + 3, z, mask=4 * i + 3 < n)
