"""Operations of a policy update on GPUs, each in torch and as a Triton kernel (`triton_policy.py`).

The torch version defines the result; a test compares the two in the Triton interpreter. All tensors are contiguous,
except that parameters may be views of the flat [P, W] tensor: only their first stride is another. Tensors in bfloat16
are read and written as such and computed with in float32.

Shapes: P members, K items of A accounts, R rows, N assets, S units, D scores, W parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import torch

from finrl_pod.native.kernel_launch import block_size, launch, use_triton, with_fallback
from finrl_pod.rl.networks.distributions import HALF_LOG_2PI
from finrl_pod.rl.networks.layers import select_items
from finrl_pod.types import Tensor

BLOCK = 1024
TILE = 4096  # numbers that a program holds at once
LOSS_TILE = 2048  # the same of the loss, which has more to keep in registers
SCORE_TILE = 1024  # the same of the gradients of scores
LANES = 32  # threads of a warp
THREAD_UNITS = 32  # units that a thread adds up to a score
MAX_WARPS = 8
ASSET_BLOCK = 8  # assets of a program: 32 bytes of an account
CHUNK_NUMBERS = 4_000_000  # of [.., A, N, S] that the torch version of the scores computes at once
ADVANTAGE_EPSILON = 1e-8
MIN_NORM = 1e-12
SUMS = 3  # of the loss, before the gradients of log_std: KL, clipped, policy loss


def _kernels() -> ModuleType:
    from finrl_pod.rl.fused import triton_policy

    return triton_policy


def computed_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which tensors of a dtype are computed with."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


def _upcast(*tensors: Tensor) -> list[Tensor]:
    """The tensors in the dtype in which they are computed with."""
    return [x.to(computed_dtype(x.dtype)) for x in tensors]


@with_fallback
def tanh_of_sum(x: Tensor, base: Tensor) -> Tensor:
    """tanh(x + base), in place: x [B, R, H] with base [B, H], one row of it for the R rows of x."""
    if use_triton(x):
        (batch, rows, width) = x.shape
        tile = _row_tile(width)
        grid = (-(-batch * rows // tile["R_BLOCK"]),)
        launch(_kernels().tanh_of_sum, grid, x, base, batch * rows, rows, base.stride(0), H=width, **tile)
        return x
    wide, shift = _upcast(x, base)
    return x.copy_(torch.tanh(wide + shift.unsqueeze(1)))


@with_fallback
def tanh_backward(grad: Tensor, y: Tensor, context_grad: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
    """(grad + weight pooled) (1 - y^2), the gradient before a tanh, in place of grad: grad, y [B, R, H].

    context_grad: [B, H], the gradient of a mean over R with weights [B, R], 1 / R each without.
    """
    batch, rows, width = y.shape
    if use_triton(y):
        tile = _row_tile(width)
        grid = (-(-batch * rows // tile["R_BLOCK"]),)
        launch(
            _kernels().tanh_backward, grid, grad, y, context_grad, weight, batch * rows, rows, SHARE=1 / rows,
            POOLED=context_grad is not None, WEIGHTED=weight is not None, H=width, **tile,
        )  # fmt: skip
        return grad
    slope, value = _upcast(grad, y)
    if context_grad is not None:
        share = 1 / rows if weight is None else weight.unsqueeze(-1)
        slope = slope + _upcast(context_grad)[0].unsqueeze(1) * share
    return grad.copy_(slope * (1 - value * value))


class ItemsOfRows(NamedTuple):
    """The items of each of R encoded rows; several items may share a row.

    order: [P, K], items sorted by row; starts: [P, R + 1], where the items of each row begin in `order`.
    """

    order: Tensor
    starts: Tensor

    @classmethod
    def of(cls, row: Tensor, rows: int) -> ItemsOfRows:
        """From the row of each item [P, K]."""
        sorted_rows, order = row.sort(stable=True, dim=1)
        row_numbers = torch.arange(rows + 1, device=row.device).expand(len(row), -1).contiguous()
        return cls(order, torch.searchsorted(sorted_rows, row_numbers))


@with_fallback
def asset_scores(
    code: Tensor, context_code: Tensor, account: Tensor, linear: Tensor, u: Tensor, w: Tensor, row: Tensor | None = None
) -> Tensor:
    """Scores [P, K, A, N], not in bfloat16: w . tanh(code_n + shared + N holding_n u) + linear_n.

    code: [P, R, N, S]; context_code: [P, R, S]; linear: [P, R, N]; row: [P, K] int64, row of each item; without it
    R = K and items are rows. account: [P, K, A, own], the holdings after cash; u, w: [P, S].
    """
    (p, rows, n, size) = code.shape
    (k, accounts, own) = account.shape[1:]
    scores = code.new_empty(p, k, accounts, n, dtype=computed_dtype(code.dtype))
    if use_triton(code):
        launch(
            _kernels().asset_scores, (p * k,), code, context_code, account, linear, u, w, scores, row, k, rows, own,
            u.stride(0), SHARED_ROWS=row is not None, A=accounts, N=n, S=size, **_score_tile(accounts, size),
        )  # fmt: skip
        return scores
    code, context_code, account, linear, u, w = _upcast(code, context_code, account, linear, u, w)
    for part in _parts(k, p * accounts * n * size):
        own_code, own_shared, own_linear = (_of_items(x, row, part) for x in (code, context_code, linear))
        hidden, _ = _hidden(own_code, own_shared, account[:, part], u)
        scores[:, part] = torch.einsum("pkans,ps->pkan", hidden, w) + own_linear.unsqueeze(2)
    return scores


@with_fallback
def asset_scores_backward(
    grad: Tensor,
    code: Tensor,
    context_code: Tensor,
    account: Tensor,
    u: Tensor,
    w: Tensor,
    row: Tensor | None = None,
    items: ItemsOfRows | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `asset_scores`: of code [P, R, N, S], linear [P, R, N], and u and w in parts [P, R .., S].

    The gradients of u and w are the sums over their parts. Hidden units are computed again instead of being kept: at 30
    assets of 64 units they are 8 kB a sample. items: the items of each row, for a minibatch whose items share rows.
    Order: code, linear, u, w.
    """
    (p, rows, n, size) = code.shape
    (k, accounts, own) = account.shape[1:]
    if use_triton(code):
        tile = _score_gradient_tile(accounts, n, size)
        blocks = -(-n // tile["N_BLOCK"])
        parts = [code.new_empty(p, rows * blocks, size) for _ in "uw"]
        out = (torch.empty_like(code), torch.empty_like(code[..., 0]), *parts)
        launch(
            _kernels().asset_scores_backward, (p * rows * blocks,), grad, code, context_code, account, u, w, *out,
            *(items or (None, None)), k, rows, own, u.stride(0), blocks, SHARED_ROWS=items is not None, A=accounts,
            N=n, S=size, **tile,
        )  # fmt: skip
        return out[0], out[1], out[2], out[3]
    dtype = code.dtype
    grad, code, context_code, account, u, w = _upcast(grad, code, context_code, account, u, w)
    total = [torch.zeros_like(x) for x in (code, code[..., 0], context_code, context_code)]
    for part in _parts(k, p * accounts * n * size):
        own_code = _of_items(code, row, part)
        own_shared = _of_items(context_code, row, part)
        hidden, holdings = _hidden(own_code, own_shared, account[:, part], u)
        slope = grad[:, part]
        of_w = torch.einsum("pkan,pkans->pks", slope, hidden)
        back = hidden.square_().neg_().add_(1).mul_(slope.unsqueeze(-1)).mul_(w.view(p, 1, 1, 1, size))
        of_u = torch.einsum("pkan,pkans->pks", holdings, back)
        for sums, x in zip(total, (back.sum(2), slope.sum(2), of_u, of_w), strict=True):
            _add_to_rows(sums, x, row, part)
    return tuple(x.to(dtype) for x in total)  # type: ignore[return-value]


@with_fallback
def held_codes(account: Tensor, code: Tensor, row: Tensor) -> Tensor:
    """Codes of the rows [P, R, N, H] summed with the holdings as weights: [P, K, A, H]."""
    (p, rows, n, size) = code.shape
    (k, accounts, own) = account.shape[1:]
    out = code.new_empty(p, k, accounts, size)
    if use_triton(code):
        launch(
            _kernels().held_codes, (p * k,), account, code, out, row, k, rows, own, A=accounts, N=n, S=size,
            **_tile(accounts, size),
        )  # fmt: skip
        return out
    account, wide = _upcast(account, code)
    for part in _parts(k, p * n * size):
        out[:, part] = account[:, part, :, 1 : 1 + n] @ _of_items(wide, row, part)
    return out


@with_fallback
def held_codes_backward(grad: Tensor, account: Tensor, code: Tensor, row: Tensor, items: ItemsOfRows) -> Tensor:
    """Gradient of `held_codes` with respect to code [P, R, N, H] from the gradient of its result [P, K, A, H]."""
    (p, rows, n, size) = code.shape
    (k, accounts, own) = account.shape[1:]
    if use_triton(code):
        out = torch.empty_like(code)
        tile = _asset_tile(accounts, n, size)
        blocks = -(-n // tile["N_BLOCK"])
        launch(
            _kernels().held_codes_backward, (p * rows * blocks,), grad, account, out, *items, k, rows, own, blocks,
            A=accounts, N=n, S=size, **tile,
        )  # fmt: skip
        return out
    grad, account = _upcast(grad, account)
    total = torch.zeros_like(code, dtype=grad.dtype)
    for part in _parts(k, p * n * size):
        _add_to_rows(total, account[:, part, :, 1 : 1 + n].transpose(2, 3) @ grad[:, part], row, part)
    return total.to(code.dtype)


@with_fallback
def sum_over_rows(x: Tensor, row: Tensor, items: ItemsOfRows) -> Tensor:
    """Sums [P, R, S] of x [P, K, S] over the items of each row."""
    (p, k, size) = x.shape
    rows = items.starts.shape[1] - 1
    if use_triton(x):
        out = x.new_empty(p, rows, size)
        wide = block_size(size)
        launch(_kernels().sum_over_rows, (p * rows,), x, out, *items, k, rows, S=size, S_BLOCK=wide)
        return out
    total = torch.zeros(p, rows, size, dtype=computed_dtype(x.dtype), device=x.device)
    _add_to_rows(total, x, row, slice(0, k))
    return total.to(x.dtype)


def _of_items(x: Tensor, row: Tensor | None, part: slice) -> Tensor:
    """Rows of x [P, R, ...] that a range of items has: [P, items, ...]."""
    return x[:, part] if row is None else select_items(x, row[:, part])


def _add_to_rows(total: Tensor, x: Tensor, row: Tensor | None, part: slice) -> None:
    """Add numbers of a range of items [P, items, ...] to the numbers of their rows [P, R, ...]."""
    if row is None:
        total[:, part] += x
        return
    p, rows = total.shape[:2]
    flat = row[:, part] + torch.arange(0, p * rows, rows, device=x.device).unsqueeze(1)
    total.view(p * rows, *total.shape[2:]).index_add_(0, flat.reshape(-1), x.flatten(0, 1).to(total.dtype))


def _hidden(code: Tensor, context_code: Tensor, account: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden units [P, K, A, N, S] and holdings in units of 1/N [P, K, A, N]."""
    p, _, n, size = code.shape
    holdings = account[..., 1 : 1 + n] * n
    inner = holdings.unsqueeze(-1) * u.view(p, 1, 1, 1, size)
    return inner.add_((code + context_code.unsqueeze(2)).unsqueeze(2)).tanh_(), holdings


def _parts(items: int, numbers: int) -> list[slice]:
    """Ranges of items such that [.., A, N, S] of each, `numbers` an item, has at most CHUNK_NUMBERS."""
    each = max(1, CHUNK_NUMBERS // numbers)
    return [slice(i, i + each) for i in range(0, items, each)]


def _row_tile(width: int) -> dict[str, int]:
    """Sizes of a tile of rows of `width` units."""
    wide = block_size(width)
    return {"H_BLOCK": wide, "R_BLOCK": max(BLOCK // wide, 1)}


def _tile(accounts: int, size: int) -> dict[str, int]:
    wide = block_size(size)
    return {"A_BLOCK": min(block_size(accounts), max(TILE // wide, 1)), "S_BLOCK": wide}


def _score_tile(accounts: int, size: int) -> dict[str, int]:
    """Accounts along the lanes of a warp; a thread adds up THREAD_UNITS units."""
    wide = block_size(size)
    warps = min(max(wide // THREAD_UNITS, 1), MAX_WARPS)
    return {"A_BLOCK": min(block_size(accounts), LANES), "S_BLOCK": wide, "num_warps": warps}


def _score_gradient_tile(accounts: int, assets: int, size: int) -> dict[str, int]:
    """Few numbers a thread, as they have three sums each."""
    wide, n_block = block_size(size), min(block_size(assets), 2)
    a_block = min(block_size(accounts), max(SCORE_TILE // (n_block * wide), 1))
    return {"A_BLOCK": a_block, "N_BLOCK": n_block, "S_BLOCK": wide, "num_warps": 2}


def _asset_tile(accounts: int, assets: int, size: int) -> dict[str, int]:
    """Sizes of a tile of accounts, assets and units."""
    n_block = min(block_size(assets), ASSET_BLOCK)
    return {**_tile(accounts, n_block * block_size(size)), "N_BLOCK": n_block, "S_BLOCK": block_size(size)}


@with_fallback
def ppo_loss(
    mean: Tensor,
    log_std: Tensor,
    action: Tensor,
    numbers: Tensor,
    valid: Tensor | None,
    clip_range: Tensor,
    entropy_coefficient: Tensor,
) -> Tensor:
    """Gradient of the clipped loss of PPO in place of the mean [P, R, D]; returns sums [P, 3 + D].

    The loss is the mean over rows. Sums: KL, clipped fraction, loss, then the gradients of the D logarithms of the
    standard deviation. mean, action: [P, R, D]; log_std: [P, D or 1]; numbers: [P, R, 3], the old log-probability, the
    advantage (standardised here) and the value target; valid: [P, K, D] bool, scores that count, None if all do;
    clip_range, entropy_coefficient: [P].
    """
    p, rows, d = mean.shape
    moments = torch.stack(torch.var_mean(numbers[..., 1], dim=1))  # [2, P]
    if use_triton(mean):
        wide = block_size(d)
        height = min(block_size(rows), max(LOSS_TILE // wide, 1))
        blocks = -(-rows // height)
        partial = mean.new_empty(p, blocks, SUMS + d)
        mask = None if valid is None else valid.view(torch.uint8)
        launch(
            _kernels().ppo_loss, (p * blocks,), mean, log_std, action, numbers, mask, moments, clip_range,
            entropy_coefficient, partial, p, rows, 1 if valid is None else rows // valid.shape[1], blocks,
            log_std.stride(0), half_log_2pi=HALF_LOG_2PI, epsilon=ADVANTAGE_EPSILON, D=d, D_BLOCK=wide, R_BLOCK=height,
            SHARED=log_std.shape[1] == 1, MASKED=valid is not None,
        )  # fmt: skip
        return partial.sum(1)
    old, advantage, _ = numbers.unbind(-1)
    variance, center = (x.unsqueeze(1) for x in moments)
    advantage = (advantage - center) / (variance.sqrt() + ADVANTAGE_EPSILON)
    spread = log_std.unsqueeze(1)  # [P, 1, D or 1]
    counts = torch.ones_like(mean)
    if valid is not None:
        counts = valid.repeat_interleave(rows // valid.shape[1], 1).to(mean.dtype)
    deviation = (action - mean) * (-spread).exp() * counts
    log_ratio = -(0.5 * deviation.square() + (spread + HALF_LOG_2PI) * counts).sum(-1) - old
    ratio = log_ratio.exp()
    clip = clip_range.unsqueeze(1)
    clipped_ratio = torch.minimum(torch.maximum(ratio, 1 - clip), 1 + clip)
    gain = ratio * advantage
    is_unclipped = ratio * advantage <= clipped_ratio * advantage
    slope = torch.where(is_unclipped, -gain, 0.0) / rows
    bonus = (entropy_coefficient / rows).view(p, 1, 1)
    grad_spread = slope.unsqueeze(-1) * (deviation.square() - counts) - counts * bonus
    means = (
        ratio - 1 - log_ratio,
        ((ratio - 1).abs() > clip).to(mean.dtype),
        -torch.where(is_unclipped, gain, clipped_ratio * advantage),
    )
    mean.copy_(slope.unsqueeze(-1) * deviation * (-spread).exp())
    return torch.cat([torch.stack([x.mean(1) for x in means], 1), grad_spread.sum(1)], 1)


@with_fallback
def value_loss(value: Tensor, numbers: Tensor, coefficient: Tensor) -> Tensor:
    """Gradient of coefficient [P] times the mean squared error, in place of the values [P, R]; returns the error [P].

    numbers: [P, R, 3], the value target last.
    """
    p, rows = value.shape
    if use_triton(value):
        blocks = -(-rows // BLOCK)
        partial = value.new_empty(p, blocks)
        launch(_kernels().value_loss, (p * blocks,), value, numbers, coefficient, partial, rows, blocks, BLOCK=BLOCK)
        return partial.sum(1)
    miss = value - numbers[..., 2]
    value.copy_(miss * (coefficient * 2 / rows).unsqueeze(1))
    return miss.square().mean(1)


def adam_clipped(
    state: tuple[Tensor, Tensor, Tensor, Tensor],
    gradient: Tensor,
    sums: Tensor,
    value_losses: Tensor,
    limits: tuple[Tensor, Tensor, Tensor],
    active: Tensor,
    alive: Tensor,
    constants: tuple[float, float, float],
) -> Tensor:
    """Clip the gradient [P, W], check it and step, in place; returns KL, clipped, policy and value loss, norm [5, P].

    state: parameters and both moments [P, W], step counts [P]. sums: result of `ppo_loss`. value_losses: [P]. limits:
    learning rate, norm and KL, [P] each. active: [P] bool, members that take part. alive: [P] bool, set to False for
    active members whose loss or norm is not finite. Members that are neither active nor alive, or whose KL is above
    its limit, stay as they are.
    """
    *moments, steps = state
    metrics, factors = _judge_gradient(gradient, (sums, value_losses), limits, active, alive, steps, constants)
    _adam(moments, gradient, factors, constants)
    return metrics


@with_fallback
def _judge_gradient(
    gradient: Tensor,
    losses: tuple[Tensor, Tensor],
    limits: tuple[Tensor, Tensor, Tensor],
    active: Tensor,
    alive: Tensor,
    steps: Tensor,
    constants: tuple[float, float, float],
) -> tuple[Tensor, Tensor]:
    """The metrics of `adam_clipped`, and factors [4, P]: of the gradient, of the step, of the root, 1 where it moves.

    Updates alive and steps.
    """
    sums, value_losses = losses
    rate, limit, target_kl = limits
    p, size = gradient.shape
    beta_1, beta_2, _ = constants
    if use_triton(gradient):
        metrics = gradient.new_empty(SUMS + 2, p)
        factors = gradient.new_empty(4, p)
        launch(
            _kernels().judge_gradient, (p,), gradient, sums, sums.stride(0), value_losses, rate, limit, target_kl,
            active.view(torch.int8), alive.view(torch.int8), steps, metrics, factors, size,
            beta_1=math.log(beta_1), beta_2=math.log(beta_2), MIN_NORM=MIN_NORM, BLOCK=BLOCK,
        )  # fmt: skip
        return metrics, factors
    norm = gradient.norm(dim=1)
    finite = torch.isfinite(norm) & torch.isfinite(sums[:, 2]) & torch.isfinite(value_losses)
    alive &= finite | ~active
    moves = active & alive & (sums[:, 0] <= target_kl)
    steps += moves
    count = steps.clamp(min=1)
    clipping = (limit / norm.clamp(min=MIN_NORM)).clamp(max=1)
    factors = torch.stack([clipping, rate / (1 - beta_1**count), (1 - beta_2**count).sqrt(), moves.to(norm.dtype)])
    return torch.cat([sums[:, :SUMS].t(), torch.stack([value_losses, norm])]), factors


@with_fallback
def _adam(moments: Sequence[Tensor], gradient: Tensor, factors: Tensor, constants: tuple[float, float, float]) -> None:
    """A step of Adam in place. moments: parameters and both moments [P, W]. factors: result of `_judge_gradient`."""
    flat, first, second = moments
    p, size = flat.shape
    beta_1, beta_2, epsilon = constants
    if use_triton(flat):
        blocks = -(-size // BLOCK)
        launch(
            _kernels().adam, (p * blocks,), flat, gradient, first, second, factors, p, size, blocks, beta_1=beta_1,
            beta_2=beta_2, epsilon=epsilon, BLOCK=BLOCK,
        )  # fmt: skip
        return
    clipping, rate, root_factor, moves = (x.unsqueeze(1) for x in factors)
    gradient = gradient * clipping
    mean = torch.lerp(first, gradient, 1 - beta_1)
    square = (second * beta_2).addcmul(gradient, gradient, value=1 - beta_2)
    new_flat = flat - rate * mean / (square.sqrt() / root_factor + epsilon)
    for tensor, new_tensor in ((first, mean), (second, square), (flat, new_flat)):
        tensor.copy_(torch.where(moves > 0, new_tensor, tensor))
