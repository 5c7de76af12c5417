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
def _zeros(pointers):
    """Zeros in the shape of pointers, in the dtype used for computing with their numbers."""
    is_double: tl.constexpr = pointers.dtype.element_ty == tl.float64
    return tl.zeros(pointers.shape, tl.float64) if is_double else tl.zeros(pointers.shape, tl.float32)


@triton.jit
def tanh_of_sum(
    x, base, count, rows, base_stride, H: tl.constexpr, H_BLOCK: tl.constexpr, R_BLOCK: tl.constexpr
):  # fmt: skip
    """x = tanh(x + base), in place: x [B, R, H]; base [B, H]. count: B R rows; a program computes R_BLOCK of them."""
    row = tl.program_id(0).to(tl.int64) * R_BLOCK + tl.arange(0, R_BLOCK)
    h = tl.arange(0, H_BLOCK)
    mask = (row < count)[:, None] & (h < H)[None, :]
    at = row[:, None] * H + h[None, :]
    # Divided once a row: rows * H may not fit into 32 bits, and dividing 64 bits takes longer than reading a number.
    total = _load(x + at, mask) + _load(base + (row // rows * base_stride)[:, None] + h[None, :], mask)
    tl.store(x + at, _tanh(total), mask=mask)


@triton.jit
def tanh_backward(
    grad, y, context_grad, weight, count, rows, SHARE: tl.constexpr, POOLED: tl.constexpr, WEIGHTED: tl.constexpr,
    H: tl.constexpr, H_BLOCK: tl.constexpr, R_BLOCK: tl.constexpr,
):  # fmt: skip
    """grad = (grad + weight pooled) (1 - y^2): grad, y [B, R, H]; pooled [B, H]; weight [B, R], else SHARE.

    count: B R rows; a program computes R_BLOCK of them.
    """
    row = tl.program_id(0).to(tl.int64) * R_BLOCK + tl.arange(0, R_BLOCK)
    h = tl.arange(0, H_BLOCK)
    here = row < count
    mask = here[:, None] & (h < H)[None, :]
    at = row[:, None] * H + h[None, :]
    value = _load(y + at, mask)
    slope = _load(grad + at, mask)
    if POOLED:
        pooled_slope = _load(context_grad + (row // rows * H)[:, None] + h[None, :], mask)
        if WEIGHTED:
            slope += pooled_slope * _load(weight + row, here)[:, None]
        else:
            slope += pooled_slope * SHARE
    tl.store(grad + at, slope * (1 - value * value), mask=mask)


# Why the two kernels of asset scores are laid out as they are. At 2^17 accounts x 64 steps in 4 minibatches, an update
# of 30 assets with 64 units computes 2.1 M x 30 x 64 = 4.0 G hidden units, and its gradient computes them again. Each
# takes an exponential and a division of the special function units, 16 a clock on each of the 132 multiprocessors of
# an H100 or H200: 2 ms. So all else has to stay below that. Times were measured on an H200.
# - tanh x = 1 - 2 / (exp 2x + 1). The factors are moved out of the sums over units and accounts.
# - Scores: accounts lie along the lanes of a warp, and each thread adds up 32 units. With units along the lanes, adding
#   them up took 2.5 shuffles a unit: 5.5 ms, now 2.3 ms.
# - Gradients: a program has a row, 2 assets, and 16 numbers a thread. Sums over accounts stay within a thread, and with
#   fewer registers more programs hide the time that accounts take to arrive: 6.8 ms with tiles of 8 accounts x 8
#   assets, now 3.6 ms with 8 x 2.
# - 2,500 rows alone would be 2,500 programs, each with 30 assets x 26 items one after the other, and rows with many
#   items would end last.
# - The items of a row are summed in a fixed order by one program, without atomic additions: equal seeds give equal
#   weights. Sums of u and w by row and block are added by torch with all other biases.
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
    member = (tl.program_id(0) // items).to(tl.int64)
    row = item
    if SHARED_ROWS:
        row = member * rows + tl.load(rows_of + item)
    s = tl.arange(0, S_BLOCK)
    units = s < S
    direction = _load(u + member * parameter_stride + s, units) * (2 * N)
    weight = _load(w + member * parameter_stride + s, units)
    context = _load(context_code + row * S + s, units)
    total = tl.sum(weight, 0)
    weight = weight * 2
    for start in range(0, A, A_BLOCK):
        a = start + tl.arange(0, A_BLOCK)
        here = a < A
        for n in range(N):
            inner = (context + _load(code + (row * N + n) * S + s, units)) * 2
            holding = _load(account + (item * A + a) * own + 1 + n, here)
            power = tl.exp(inner[:, None] + direction[:, None] * holding[None, :])  # [S, A]
            score = total - tl.sum(weight[:, None] / (power + 1), 0) + _load(linear + row * N + n, n < N)
            tl.store(scores + (item * A + a) * N + n, score, mask=here)


@triton.jit
def asset_scores_backward(
    grad, code, context_code, account, u, w, grad_code, grad_linear, grad_u, grad_w, order, starts, items, rows, own,
    parameter_stride, blocks, SHARED_ROWS: tl.constexpr, A: tl.constexpr, N: tl.constexpr, S: tl.constexpr,
    A_BLOCK: tl.constexpr, N_BLOCK: tl.constexpr, S_BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of `asset_scores` for one of the `blocks` blocks of assets of a row; hidden units are computed again.

    grad_u, grad_w: [P, R, blocks, S]. order, starts: columns of `ItemsOfRows` if SHARED_ROWS, else items are rows.
    """
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64)
    member = (program // blocks // rows).to(tl.int64)
    n = program % blocks * N_BLOCK + tl.arange(0, N_BLOCK)
    s = tl.arange(0, S_BLOCK)
    block = tl.arange(0, A_BLOCK)
    assets = n < N
    units = s < S
    direction = _load(u + member * parameter_stride + s, units) * 2
    weight = _load(w + member * parameter_stride + s, units)
    context = _load(context_code + row * S + s, units)
    at = (row * N + n)[:, None] * S + s[None, :]
    mask = assets[:, None] & units[None, :]
    inner = (context[None, :] + _load(code + at, mask)) * 2  # [N, S]
    sum_back = inner * 0
    sum_held = inner * 0
    sum_half = inner * 0
    sum_slope = (block[:, None] + n[None, :]).to(inner.dtype) * 0  # [A, N]
    begin = 0
    end = 1
    if SHARED_ROWS:
        begin = tl.load(starts + row + member)
        end = tl.load(starts + row + member + 1)
    for j in range(begin, end):
        item = row
        if SHARED_ROWS:
            item = member * items + tl.load(order + member * items + j)
        for start in range(0, A, A_BLOCK):
            a = start + block
            account_row = (item * A + a)[:, None]
            here = (a < A)[:, None] & assets[None, :]
            holding = _load(account + account_row * own + 1 + n[None, :], here) * N  # [A, N]
            slope = _load(grad + account_row * N + n[None, :], here)
            power = tl.exp(inner[None, :, :] + holding[:, :, None] * direction[None, None, :])  # [A, N, S]
            half = 1 / (power + 1)  # (1 - hidden) / 2, so that 1 - hidden^2 is 4 (half - half^2)
            back = slope[:, :, None] * (half - half * half)
            sum_slope += slope
            sum_back += tl.sum(back, 0)
            sum_held += tl.sum(back * holding[:, :, None], 0)
            sum_half += tl.sum(slope[:, :, None] * half, 0)
    slope_linear = tl.sum(sum_slope, 0)
    slope_w = slope_linear[:, None] - 2 * sum_half
    slope_u = 4 * weight[None, :] * sum_held
    tl.store(grad_code + at, 4 * weight[None, :] * sum_back, mask=mask)
    tl.store(grad_linear + row * N + n, slope_linear, mask=assets)
    tl.store(grad_u + program.to(tl.int64) * S + s, tl.sum(slope_u, 0), mask=units)
    tl.store(grad_w + program.to(tl.int64) * S + s, tl.sum(slope_w, 0), mask=units)


@triton.jit
def held_codes(
    account, code, out, rows_of, items, rows, own,
    A: tl.constexpr, N: tl.constexpr, S: tl.constexpr, A_BLOCK: tl.constexpr, S_BLOCK: tl.constexpr,
):  # fmt: skip
    """out_as = sum over n of holding_an code_ns, of the row of the item; a program computes one item."""
    item = tl.program_id(0).to(tl.int64)
    row = (tl.program_id(0) // items).to(tl.int64) * rows + tl.load(rows_of + item)
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
    grad, account, grad_code, order, starts, items, rows, own, blocks,
    A: tl.constexpr, N: tl.constexpr, S: tl.constexpr, A_BLOCK: tl.constexpr, N_BLOCK: tl.constexpr,
    S_BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradient of `held_codes` for the codes of a block of assets of a row, split as in `asset_scores_backward`."""
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64)
    member = (program // blocks // rows).to(tl.int64)
    n = program % blocks * N_BLOCK + tl.arange(0, N_BLOCK)
    s = tl.arange(0, S_BLOCK)
    assets = n < N
    units = s < S
    begin = tl.load(starts + row + member)
    end = tl.load(starts + row + member + 1)
    to = grad_code + (row * N + n)[:, None] * S + s[None, :]
    total = _zeros(to)
    for j in range(begin, end):
        item = member * items + tl.load(order + member * items + j)
        for start in range(0, A, A_BLOCK):
            a = start + tl.arange(0, A_BLOCK)
            here = (a < A)[:, None]
            account_row = (item * A + a)[:, None]
            holding = _load(account + account_row * own + 1 + n[None, :], here & assets[None, :])  # [A, N]
            slope = _load(grad + account_row * S + s[None, :], here & units[None, :])  # [A, S]
            total += tl.sum(holding[:, :, None] * slope[:, None, :], 0)
    tl.store(to, total, mask=assets[:, None] & units[None, :])


@triton.jit
def sum_over_rows(x, out, order, starts, items, rows, S: tl.constexpr, S_BLOCK: tl.constexpr):
    """out [P, R, S]: sums of x [P, K, S] over the items of each row, in a fixed order; a program computes one row."""
    row = tl.program_id(0).to(tl.int64)
    member = (tl.program_id(0) // rows).to(tl.int64)
    s = tl.arange(0, S_BLOCK)
    units = s < S
    begin = tl.load(starts + row + member)
    end = tl.load(starts + row + member + 1)
    total = _zeros(out + s)
    for j in range(begin, end):
        item = member * items + tl.load(order + member * items + j)
        total += _load(x + item * S + s, units)
    tl.store(out + row * S + s, total, mask=units)


@triton.jit
def ppo_loss(
    mean, log_std, action, numbers, valid, moments, clip_range, entropy_coefficient, partial, members, rows, accounts,
    blocks, log_std_stride, half_log_2pi: tl.constexpr, epsilon: tl.constexpr,
    D: tl.constexpr, D_BLOCK: tl.constexpr, R_BLOCK: tl.constexpr, SHARED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The clipped loss of R_BLOCK rows of a member: its gradient in place of the mean, and sums.

    A program computes one of the `blocks` blocks of a member. The sums are KL, clipped, loss, gradients of log_std..
    mean, action: [P, R, D]; numbers: [P, R, 3], the old log-probability, the advantage and the value target; moments:
    [2, P], variance and mean of the advantages; valid: [P, R / accounts, D].
    """
    program = tl.program_id(0)
    member = (program // blocks).to(tl.int64)
    r = (program % blocks).to(tl.int64) * R_BLOCK + tl.arange(0, R_BLOCK)
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
    each = 1 / (clip * 0 + rows)  # in the dtype of the numbers
    slope = tl.where(ratio * advantage <= clipped_ratio * advantage, -advantage * ratio, advantage * 0) * each
    tl.store(mean + at, slope[:, None] * deviation * precision[None, :], mask=wide)
    bonus = tl.load(entropy_coefficient + member) * each
    slope_spread = tl.where(counts, slope[:, None] * (deviation * deviation - 1) - bonus, 0.0)
    to = partial + program.to(tl.int64) * (3 + D)
    tl.store(to, tl.sum(ratio - 1 - log_ratio, 0) * each)
    tl.store(to + 1, tl.sum(tl.where(tl.abs(ratio - 1) > clip, ratio * 0 + 1, ratio * 0), 0) * each)
    tl.store(to + 2, -tl.sum(gain, 0) * each)
    tl.store(to + 3 + d, tl.sum(slope_spread, 0), mask=real)


@triton.jit
def value_loss(value, numbers, coefficient, partial, rows, blocks, BLOCK: tl.constexpr):
    """The squared error of BLOCK values of a member: its gradient in place of the values, and the sum [P, blocks].

    value: [P, R]; numbers: [P, R, 3], the value target last.
    """
    program = tl.program_id(0)
    member = (program // blocks).to(tl.int64)
    r = (program % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = r < rows
    row = member * rows + r
    miss = tl.load(value + row, mask=here, other=0.0) - tl.load(numbers + row * 3 + 2, mask=here, other=0.0)
    weight = tl.load(coefficient + member)
    each = 1 / (weight * 0 + rows)  # in the dtype of the numbers
    tl.store(value + row, 2 * each * weight * miss, mask=here)
    tl.store(partial + program, tl.sum(miss * miss, 0) * each)


@triton.jit
def judge_gradient(
    gradient, sums, sums_stride, value_losses, rate, limit, target_kl, active, alive, steps, metrics, factors, size,
    beta_1: tl.constexpr, beta_2: tl.constexpr, MIN_NORM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Norm, clipping factor and step of the gradient [P, W] of each member; a program judges one member.

    sums: [P, 3 ..] of `ppo_loss`; value_losses: [P]. Updates alive and steps [P]. metrics: [5, P]. factors: [4, P], of
    the gradient, of the step, of the root of the second moment, and 1 where the member moves.
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
    squared_error = tl.load(value_losses + member)
    tl.store(metrics + 2 * members + member, policy_loss)
    tl.store(metrics + 3 * members + member, squared_error)
    tl.store(metrics + 4 * members + member, norm)
    infinity = float("inf")  # comparisons with NaN are false
    finite = (tl.abs(norm) < infinity) & (tl.abs(policy_loss) < infinity) & (tl.abs(squared_error) < infinity)
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
    program = tl.program_id(0)
    member = (program // blocks).to(tl.int64)
    i = (program % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
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
