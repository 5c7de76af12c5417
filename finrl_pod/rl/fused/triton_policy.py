"""Triton kernels of a policy update on GPUs: activations, scores of assets, the loss of PPO, clipping and Adam.

`device_operations.py` has the torch version of each and chooses between the two. Imported only where Triton is
installed. Numbers are read in their dtype and computed with in it, those in bfloat16 in float32. R: rows; H, S:
units; D: scores.
"""

# Triton has no type hints, and its kernels take none.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-untyped"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    return 1 - 2 / (tl.exp(2 * x) + 1)


@triton.jit
def _load(pointer, mask):
    """Numbers, 0 where masked out; those in bfloat16 as float32."""
    x = tl.load(pointer, mask=mask, other=0.0)
    if x.dtype == tl.bfloat16:
        x = x.to(tl.float32)
    return x


@triton.jit
def _zeros(like, SIZE: tl.constexpr):
    """Zeros in the dtype used for computing with the numbers of a pointer."""
    return tl.zeros((SIZE,), tl.float64) if like.dtype.element_ty == tl.float64 else tl.zeros((SIZE,), tl.float32)


@triton.jit
def tanh_of_sum(x, base, y, count, rows, base_stride, H: tl.constexpr, BLOCK: tl.constexpr):
    """y = tanh(x + base): x, y [B, R, H]; base [B, H]."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = i < count
    at = i // (rows * H) * base_stride + i % H
    total = _load(x + i, here) + _load(base + at, here)
    tl.store(y + i, _tanh(total), mask=here)


@triton.jit
def tanh_backward(
    grad, y, context_grad, weight, out, count, rows, SHARE: tl.constexpr, POOLED: tl.constexpr, WEIGHTED: tl.constexpr,
    H: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = (grad + weight pooled) (1 - y^2): grad, y, out [B, R, H]; pooled [B, H]; weight [B, R], else SHARE."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = i < count
    value = _load(y + i, here)
    slope = _load(grad + i, here)
    if POOLED:
        pooled_slope = _load(context_grad + i // (rows * H) * H + i % H, here)
        if WEIGHTED:
            slope += pooled_slope * _load(weight + i // H, here)
        else:
            slope += pooled_slope * SHARE
    tl.store(out + i, slope * (1 - value * value), mask=here)


@triton.jit
def asset_scores(
    code, context_code, account, linear, u, w, scores, rows_of, items, rows, own, parameter_stride,
    SHARED_ROWS: tl.constexpr, A: tl.constexpr, N: tl.constexpr, S: tl.constexpr, A_BLOCK: tl.constexpr,
    S_BLOCK: tl.constexpr,
):  # fmt: skip
    """scores_an = w . tanh(code_n + shared + N holding_an u) + linear_n; a program computes one item.

    rows_of: [P, K], the row of each item if SHARED_ROWS, else items are rows.
    """
    item = tl.program_id(0).to(tl.int64)
    member = item // items
    row = item
    if SHARED_ROWS:
        row = member * rows + tl.load(rows_of + item)
    s = tl.arange(0, S_BLOCK)
    units = s < S
    direction = _load(u + member * parameter_stride + s, units)
    weight = _load(w + member * parameter_stride + s, units)
    context = _load(context_code + row * S + s, units)
    for start in range(0, A, A_BLOCK):
        a = start + tl.arange(0, A_BLOCK)
        here = a < A
        for n in range(N):
            inner = context + _load(code + (row * N + n) * S + s, units)
            holding = _load(account + (item * A + a) * own + 1 + n, here) * N
            hidden = _tanh(inner[None, :] + holding[:, None] * direction[None, :])
            score = tl.sum(hidden * weight[None, :], 1) + _load(linear + row * N + n, n < N)
            tl.store(scores + (item * A + a) * N + n, score, mask=here)


@triton.jit
def asset_scores_backward(
    grad, code, context_code, account, u, w, grad_code, grad_linear, grad_u, grad_w, order, starts, items, rows, own,
    parameter_stride, SHARED_ROWS: tl.constexpr, A: tl.constexpr, N: tl.constexpr, S: tl.constexpr,
    A_BLOCK: tl.constexpr, S_BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of `asset_scores` for one row, over its items in a fixed order; hidden units are computed again.

    grad_u, grad_w: [P, R, S]. order, starts: columns of `ItemsOfRows` if SHARED_ROWS, else items are rows.
    """
    row = tl.program_id(0).to(tl.int64)
    member = row // rows
    s = tl.arange(0, S_BLOCK)
    units = s < S
    direction = _load(u + member * parameter_stride + s, units)
    weight = _load(w + member * parameter_stride + s, units)
    context = _load(context_code + row * S + s, units)
    slope_u = context * 0
    slope_w = context * 0
    begin = 0
    end = 1
    if SHARED_ROWS:
        begin = tl.load(starts + row + member)
        end = tl.load(starts + row + member + 1)
    for n in range(N):
        inner = context + _load(code + (row * N + n) * S + s, units)
        slope_code = context * 0
        slope_linear = tl.sum(context * 0, 0)
        for j in range(begin, end):
            item = row
            if SHARED_ROWS:
                item = member * items + tl.load(order + member * items + j)
            for start in range(0, A, A_BLOCK):
                a = start + tl.arange(0, A_BLOCK)
                here = a < A
                holding = _load(account + (item * A + a) * own + 1 + n, here) * N
                slope = _load(grad + (item * A + a) * N + n, here)
                hidden = _tanh(inner[None, :] + holding[:, None] * direction[None, :])
                back = slope[:, None] * weight[None, :] * (1 - hidden * hidden)
                slope_code += tl.sum(back, 0)
                slope_linear += tl.sum(slope, 0)
                slope_u += tl.sum(back * holding[:, None], 0)
                slope_w += tl.sum(slope[:, None] * hidden, 0)
        tl.store(grad_code + (row * N + n) * S + s, slope_code, mask=units)
        tl.store(grad_linear + row * N + n, slope_linear)
    tl.store(grad_u + row * S + s, slope_u, mask=units)
    tl.store(grad_w + row * S + s, slope_w, mask=units)


@triton.jit
def held_codes(
    account, code, out, rows_of, items, rows, own,
    A: tl.constexpr, N: tl.constexpr, S: tl.constexpr, A_BLOCK: tl.constexpr, S_BLOCK: tl.constexpr,
):  # fmt: skip
    """out_as = sum over n of holding_an code_ns, of the row of the item; a program computes one item."""
    item = tl.program_id(0).to(tl.int64)
    row = item // items * rows + tl.load(rows_of + item)
    s = tl.arange(0, S_BLOCK)
    units = s < S
    for start in range(0, A, A_BLOCK):
        a = start + tl.arange(0, A_BLOCK)
        here = a < A
        total = _load(account + (item * A + a) * own, here)[:, None] * _load(code + row * N * S + s, units)[None, :] * 0
        for n in range(N):
            holding = _load(account + (item * A + a) * own + 1 + n, here)
            total += holding[:, None] * _load(code + (row * N + n) * S + s, units)[None, :]
        to = out + (item * A + a)[:, None] * S + s[None, :]
        tl.store(to, total, mask=here[:, None] & units[None, :])


@triton.jit
def held_codes_backward(
    grad, account, grad_code, order, starts, items, rows, own,
    A: tl.constexpr, N: tl.constexpr, S: tl.constexpr, A_BLOCK: tl.constexpr, S_BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradient of `held_codes` for the codes of one row, over its items in a fixed order."""
    row = tl.program_id(0).to(tl.int64)
    member = row // rows
    s = tl.arange(0, S_BLOCK)
    units = s < S
    begin = tl.load(starts + row + member)
    end = tl.load(starts + row + member + 1)
    for n in range(N):
        total = _zeros(grad_code, S_BLOCK)
        for j in range(begin, end):
            item = member * items + tl.load(order + member * items + j)
            for start in range(0, A, A_BLOCK):
                a = start + tl.arange(0, A_BLOCK)
                here = a < A
                holding = _load(account + (item * A + a) * own + 1 + n, here)
                slope = _load(grad + (item * A + a)[:, None] * S + s[None, :], here[:, None] & units[None, :])
                total += tl.sum(holding[:, None] * slope, 0)
        tl.store(grad_code + (row * N + n) * S + s, total, mask=units)


@triton.jit
def sum_over_rows(x, out, order, starts, items, rows, S: tl.constexpr, S_BLOCK: tl.constexpr):
    """out [P, R, S]: sums of x [P, K, S] over the items of each row, in a fixed order; a program computes one row."""
    row = tl.program_id(0).to(tl.int64)
    member = row // rows
    s = tl.arange(0, S_BLOCK)
    units = s < S
    begin = tl.load(starts + row + member)
    end = tl.load(starts + row + member + 1)
    total = _zeros(out, S_BLOCK)
    for j in range(begin, end):
        item = member * items + tl.load(order + member * items + j)
        total += _load(x + item * S + s, units)
    tl.store(out + row * S + s, total, mask=units)


@triton.jit
def ppo_loss(
    mean, log_std, value, action, numbers, valid, moments, clip_range, value_coefficient, entropy_coefficient,
    grad_mean, grad_value, partial, members, rows, accounts, blocks, log_std_stride, half_log_2pi: tl.constexpr,
    epsilon: tl.constexpr,
    D: tl.constexpr, D_BLOCK: tl.constexpr, R_BLOCK: tl.constexpr, SHARED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The clipped loss of R_BLOCK rows of a member: its gradients, and sums of [KL, clipped, policy, value, log_std..].

    A program computes one of the `blocks` blocks of a member.
    mean, action, grad_mean: [P, R, D]; value, grad_value: [P, R]; numbers: [P, R, 3], the old log-probability, the
    advantage and the value target; moments: [2, P], variance and mean of the advantages; valid: [P, R / accounts, D].
    """
    program = tl.program_id(0).to(tl.int64)
    member = program // blocks
    block = program % blocks
    r = block * R_BLOCK + tl.arange(0, R_BLOCK)
    d = tl.arange(0, D_BLOCK)
    here = r < rows
    real = d < D
    wide = here[:, None] & real[None, :]
    row = member * rows + r
    at = row[:, None] * D + d[None, :]
    if SHARED:
        spread = tl.load(log_std + member * log_std_stride + d * 0, mask=real, other=0.0)
    else:
        spread = tl.load(log_std + member * log_std_stride + d, mask=real, other=0.0)
    counts = wide
    if MASKED:
        counts = wide & (tl.load(valid + (member * (rows // accounts) + r // accounts)[:, None] * D + d[None, :],
                                 mask=wide, other=0) != 0)  # fmt: skip
    precision = tl.exp(-spread)
    off = tl.load(action + at, mask=wide, other=0.0) - tl.load(mean + at, mask=wide, other=0.0)
    deviation = tl.where(counts, off * precision[None, :], 0.0)
    constant = tl.where(counts, (spread + half_log_2pi)[None, :] + deviation * 0, 0.0)
    log_probability = -tl.sum(0.5 * deviation * deviation + constant, 1)
    log_ratio = log_probability - tl.load(numbers + row * 3, mask=here, other=0.0)
    log_ratio = tl.where(here, log_ratio, 0.0)
    variance = tl.load(moments + member)
    center = tl.load(moments + members + member)
    advantage = (tl.load(numbers + row * 3 + 1, mask=here, other=0.0) - center) / (tl.sqrt(variance) + epsilon)
    advantage = tl.where(here, advantage, 0.0)
    ratio = tl.exp(log_ratio)
    clip = tl.load(clip_range + member)
    clipped_ratio = tl.minimum(tl.maximum(ratio, 1 - clip), 1 + clip)
    gain = tl.minimum(ratio * advantage, clipped_ratio * advantage)
    miss = tl.load(value + row, mask=here, other=0.0) - tl.load(numbers + row * 3 + 2, mask=here, other=0.0)
    each = 1 / (clip * 0 + rows)  # in the dtype of the numbers
    slope = tl.where(ratio * advantage <= clipped_ratio * advantage, -advantage * ratio, advantage * 0) * each
    tl.store(grad_mean + at, slope[:, None] * deviation * precision[None, :], mask=wide)
    tl.store(grad_value + row, 2 * each * tl.load(value_coefficient + member) * miss, mask=here)
    bonus = tl.load(entropy_coefficient + member) * each
    slope_spread = tl.where(counts, slope[:, None] * (deviation * deviation - 1) - bonus, 0.0)
    to = partial + program * (4 + D)
    tl.store(to, tl.sum(ratio - 1 - log_ratio, 0) * each)
    tl.store(to + 1, tl.sum(tl.where(tl.abs(ratio - 1) > clip, ratio * 0 + 1, ratio * 0), 0) * each)
    tl.store(to + 2, -tl.sum(gain, 0) * each)
    tl.store(to + 3, tl.sum(miss * miss, 0) * each)
    tl.store(to + 4 + d, tl.sum(slope_spread, 0), mask=real)


@triton.jit
def judge_gradient(
    gradient, sums, sums_stride, rate, limit, target_kl, active, alive, steps, metrics, factors, size,
    beta_1: tl.constexpr, beta_2: tl.constexpr, MIN_NORM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Norm, clipping factor and step of the gradient [P, W] of each member; a program judges one member.

    sums: [P, 4 ..] of `ppo_loss`. Updates alive and steps [P]. metrics: [5, P]. factors: [4, P], of the gradient, of
    the step, of the root of the second moment, and 1 where the member moves.
    """
    member = tl.program_id(0).to(tl.int64)
    members = tl.num_programs(0)
    i = tl.arange(0, BLOCK)
    total = tl.load(gradient + member * size + i, mask=i < 0, other=0.0)
    for start in range(0, size, BLOCK):
        x = tl.load(gradient + member * size + start + i, mask=start + i < size, other=0.0)
        total += x * x
    norm = tl.sqrt(tl.sum(total, 0))
    kl = tl.load(sums + member * sums_stride)
    tl.store(metrics + member, kl)
    tl.store(metrics + members + member, tl.load(sums + member * sums_stride + 1))
    policy_loss = tl.load(sums + member * sums_stride + 2)
    value_loss = tl.load(sums + member * sums_stride + 3)
    tl.store(metrics + 2 * members + member, policy_loss)
    tl.store(metrics + 3 * members + member, value_loss)
    tl.store(metrics + 4 * members + member, norm)
    infinity = float("inf")  # comparisons with NaN are false
    finite = (tl.abs(norm) < infinity) & (tl.abs(policy_loss) < infinity) & (tl.abs(value_loss) < infinity)
    takes_part = tl.load(active + member) != 0
    lives = (tl.load(alive + member) != 0) & (finite | (takes_part == 0))
    moves = takes_part & lives & (kl <= tl.load(target_kl + member))
    tl.store(alive + member, lives.to(tl.int8))
    count = tl.load(steps + member) + tl.where(moves, 1.0, 0.0)
    tl.store(steps + member, count)
    count = tl.maximum(count, 1.0)
    tl.store(factors + member, tl.minimum(tl.load(limit + member) / tl.maximum(norm, MIN_NORM), 1.0))
    # beta^t as exp(t log beta)
    tl.store(factors + members + member, tl.load(rate + member) / (1 - tl.exp(count * beta_1)))
    tl.store(factors + 2 * members + member, tl.sqrt(1 - tl.exp(count * beta_2)))
    tl.store(factors + 3 * members + member, tl.where(moves, norm * 0 + 1, norm * 0))


@triton.jit
def adam(
    flat, gradient, first, second, factors, members, size, blocks,
    beta_1: tl.constexpr, beta_2: tl.constexpr, epsilon: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A step of Adam in place on [P, W] with the factors of `judge_gradient`; members that do not move stay.

    A program computes one of the `blocks` blocks of a member.
    """
    program = tl.program_id(0).to(tl.int64)
    member = program // blocks
    i = program % blocks * BLOCK + tl.arange(0, BLOCK)
    moves = tl.load(factors + 3 * members + member) + i * 0
    here = (i < size) & (moves > 0)
    at = member * size + i
    slope = tl.load(gradient + at, mask=here, other=0.0) * tl.load(factors + member)
    mean = tl.load(first + at, mask=here, other=0.0)
    mean += (slope - mean) * (1 - beta_1)
    square = tl.load(second + at, mask=here, other=0.0) * beta_2 + slope * slope * (1 - beta_2)
    root = tl.sqrt(square) / tl.load(factors + 2 * members + member)
    change = tl.load(factors + members + member) * mean / (root + epsilon)
    tl.store(first + at, mean, mask=here)
    tl.store(second + at, square, mask=here)
    tl.store(flat + at, tl.load(flat + at, mask=here, other=0.0) - change, mask=here)
