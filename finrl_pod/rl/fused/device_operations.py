"""Operations of a policy update on GPUs, each in torch and as a Triton kernel (`triton_policy.py`).

The torch version defines the result; a test compares the two in the Triton interpreter. All tensors are contiguous,
except that parameters may be views of the flat [P, W] tensor: only their first stride is another. Tensors in bfloat16
are read and written as such and computed with in float32.

Shapes: P members, K items of A accounts, R rows, N assets, S units, D scores, W parameters.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import NamedTuple

import torch

from finrl_pod.native.device import block_size, launch, use_triton
from finrl_pod.rl.networks.distributions import HALF_LOG_2PI
from finrl_pod.rl.networks.layers import select_items
from finrl_pod.types import Tensor

BLOCK = 1024
TILE = 4096  # numbers that a program holds at once
CHUNK_NUMBERS = 4_000_000  # of [.., A, N, S] that the torch version of the scores computes at once
ADVANTAGE_EPSILON = 1e-8
MIN_NORM = 1e-12
SUMS = 4  # of the loss, before the sums of log_std: KL, clipped, policy loss, value loss


def _kernels() -> ModuleType:
    from finrl_pod.rl.fused import triton_policy

    return triton_policy


def computed_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which tensors of a dtype are computed with."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


def _upcast(*tensors: Tensor) -> list[Tensor]:
    """The tensors in the dtype in which they are computed with."""
    return [x.to(computed_dtype(x.dtype)) for x in tensors]


def tanh_of_sum(x: Tensor, base: Tensor) -> Tensor:
    """tanh(x + base): x [B, R, H] with base [B, H], one row of it for the R rows of x."""
    if not use_triton(x):
        wide, shift = _upcast(x, base)
        return torch.tanh(wide + shift.unsqueeze(1)).to(x.dtype)
    y = torch.empty_like(x)
    (_, rows, width) = x.shape
    grid = (-(-x.numel() // BLOCK),)
    launch(_kernels().tanh_of_sum, grid, x, base, y, x.numel(), rows, base.stride(0), H=width, BLOCK=BLOCK)
    return y


def tanh_backward(grad: Tensor, y: Tensor, context_grad: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
    """(grad + weight pooled) (1 - y^2), the gradient before a tanh: grad, y [B, R, H].

    context_grad: [B, H], the gradient of a mean over R with weights [B, R], 1 / R each without.
    """
    batch, rows, width = y.shape
    if not use_triton(y):
        slope, value = _upcast(grad, y)
        if context_grad is not None:
            share = 1 / rows if weight is None else weight.unsqueeze(-1)
            slope = slope + _upcast(context_grad)[0].unsqueeze(1) * share
        return (slope * (1 - value * value)).to(y.dtype)
    out = torch.empty_like(y)
    grid = (-(-y.numel() // BLOCK),)
    launch(
        _kernels().tanh_backward, grid, grad, y, context_grad, weight, out, batch * rows * width, rows, SHARE=1 / rows,
        POOLED=context_grad is not None, WEIGHTED=weight is not None, H=width, BLOCK=BLOCK,
    )  # fmt: skip
    return out


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
            u.stride(0), SHARED_ROWS=row is not None, A=accounts, N=n, S=size, **_tile(accounts, size),
        )  # fmt: skip
        return scores
    code, context_code, account, linear, u, w = _upcast(code, context_code, account, linear, u, w)
    for part in _parts(k, p * accounts * n * size):
        own_code, own_shared, own_linear = (_of_items(x, row, part) for x in (code, context_code, linear))
        hidden, _ = _hidden(own_code, own_shared, account[:, part], u)
        scores[:, part] = torch.einsum("pkans,ps->pkan", hidden, w) + own_linear.unsqueeze(2)
    return scores


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
    """Gradients of `asset_scores`: of code [P, R, N, S] and linear [P, R, N], and of u and w by row [P, R, S].

    Hidden units are computed again instead of being kept: at 30 assets of 64 units they are 8 kB a sample. items: as
    given by row, of a minibatch whose items share rows. Order: code, linear, u, w.
    """
    (p, rows, n, size) = code.shape
    (k, accounts, own) = account.shape[1:]
    if use_triton(code):
        out = [torch.empty_like(code), torch.empty_like(code[..., 0]), *(torch.empty_like(context_code) for _ in "uw")]
        launch(
            _kernels().asset_scores_backward, (p * rows,), grad, code, context_code, account, u, w, *out,
            *(items or (None, None)), k, rows, own, u.stride(0), SHARED_ROWS=items is not None, A=accounts, N=n, S=size,
            **_tile(accounts, size),
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


def held_codes_backward(grad: Tensor, account: Tensor, code: Tensor, row: Tensor, items: ItemsOfRows) -> Tensor:
    """Gradient of `held_codes` with respect to code [P, R, N, H] from the gradient of its result [P, K, A, H]."""
    (p, rows, n, size) = code.shape
    (k, accounts, own) = account.shape[1:]
    if use_triton(code):
        out = torch.empty_like(code)
        launch(
            _kernels().held_codes_backward, (p * rows,), grad, account, out, *items, k, rows, own, A=accounts, N=n,
            S=size, **_tile(accounts, size),
        )  # fmt: skip
        return out
    grad, account = _upcast(grad, account)
    total = torch.zeros_like(code, dtype=grad.dtype)
    for part in _parts(k, p * n * size):
        _add_to_rows(total, account[:, part, :, 1 : 1 + n].transpose(2, 3) @ grad[:, part], row, part)
    return total.to(code.dtype)


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


def _tile(accounts: int, size: int) -> dict[str, int]:
    wide = block_size(size)
    return {"A_BLOCK": min(block_size(accounts), max(TILE // wide, 1)), "S_BLOCK": wide}


def ppo_loss(
    mean: Tensor,
    log_std: Tensor,
    value: Tensor,
    action: Tensor,
    numbers: Tensor,
    valid: Tensor | None,
    coefficients: tuple[Tensor, Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the clipped loss of PPO: of the mean [P, R, D] and the value [P, R]; and sums [P, 4 + D].

    The loss is the mean over rows. Sums: KL, clipped fraction, policy loss, value loss, then the gradient of the D
    logarithms of the standard deviation. mean, action: [P, R, D]; log_std: [P, D or 1]; value: [P, R]; numbers:
    [P, R, 3], the old log-probability, the advantage (standardised here) and the value target; valid: [P, K, D] bool,
    scores that count, None if all do; coefficients: clip range, of the value loss, of the entropy, [P] each.
    """
    p, rows, d = mean.shape
    moments = torch.stack(torch.var_mean(numbers[..., 1], dim=1))  # [2, P]
    clip_range, value_coefficient, entropy_coefficient = coefficients
    if use_triton(mean):
        wide = block_size(d)
        height = min(block_size(rows), max(TILE // wide, 1))
        blocks = -(-rows // height)
        grad_mean = torch.empty_like(mean)
        grad_value = torch.empty_like(value)
        partial = mean.new_empty(p, blocks, SUMS + d)
        mask = None if valid is None else valid.view(torch.uint8)
        launch(
            _kernels().ppo_loss, (p * blocks,), mean, log_std, value, action, numbers, mask, moments, *coefficients,
            grad_mean, grad_value, partial, p, rows, 1 if valid is None else rows // valid.shape[1], blocks,
            log_std.stride(0), half_log_2pi=HALF_LOG_2PI, epsilon=ADVANTAGE_EPSILON, D=d, D_BLOCK=wide, R_BLOCK=height,
            SHARED=log_std.shape[1] == 1, MASKED=valid is not None,
        )  # fmt: skip
        return grad_mean, grad_value, partial.sum(1)
    old, advantage, target = numbers.unbind(-1)
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
    miss = value - target
    grad_spread = slope.unsqueeze(-1) * (deviation.square() - counts) - counts * (entropy_coefficient / rows).view(
        p, 1, 1
    )
    means = (
        ratio - 1 - log_ratio,
        ((ratio - 1).abs() > clip).to(mean.dtype),
        -torch.where(is_unclipped, gain, clipped_ratio * advantage),
        miss.square(),
    )
    sums = torch.cat([torch.stack([x.mean(1) for x in means], 1), grad_spread.sum(1)], 1)
    return slope.unsqueeze(-1) * deviation * (-spread).exp(), miss * (value_coefficient * 2 / rows).unsqueeze(1), sums


def adam_clipped(
    state: tuple[Tensor, Tensor, Tensor, Tensor],
    gradient: Tensor,
    sums: Tensor,
    limits: tuple[Tensor, Tensor, Tensor],
    active: Tensor,
    alive: Tensor,
    constants: tuple[float, float, float],
) -> Tensor:
    """Clip the gradient [P, W], check it and step, in place; returns KL, clipped, policy and value loss, norm [5, P].

    state: parameters and both moments [P, W], step counts [P]. sums: result of `ppo_loss`. limits: learning rate, norm
    and KL, [P] each. active: [P] bool, members that take part. alive: [P] bool, set to False for active members whose
    loss or norm is not finite. Members that are neither active nor alive, or whose KL is above its limit, stay as they
    are.
    """
    flat, first, second, steps = state
    rate, limit, target_kl = limits
    p, size = flat.shape
    beta_1, beta_2, epsilon = constants
    if use_triton(flat):
        metrics = flat.new_empty(SUMS + 1, p)
        factors = flat.new_empty(4, p)
        launch(
            _kernels().judge_gradient, (p,), gradient, sums, sums.stride(0), rate, limit, target_kl,
            active.view(torch.int8), alive.view(torch.int8), steps, metrics, factors, size,
            beta_1=math.log(beta_1), beta_2=math.log(beta_2), MIN_NORM=MIN_NORM, BLOCK=BLOCK,
        )  # fmt: skip
        blocks = -(-size // BLOCK)
        launch(
            _kernels().adam, (p * blocks,), flat, gradient, first, second, factors, p, size, blocks, beta_1=beta_1,
            beta_2=beta_2, epsilon=epsilon, BLOCK=BLOCK,
        )  # fmt: skip
        return metrics
    norm = gradient.norm(dim=1)
    gradient = gradient * (limit / norm.clamp(min=MIN_NORM)).clamp(max=1).unsqueeze(1)
    finite = torch.isfinite(norm) & torch.isfinite(sums[:, 2]) & torch.isfinite(sums[:, 3])
    alive &= finite | ~active
    moves = active & alive & (sums[:, 0] <= target_kl)
    steps += moves
    count = steps.clamp(min=1)
    mean = torch.lerp(first, gradient, 1 - beta_1)
    square = (second * beta_2).addcmul(gradient, gradient, value=1 - beta_2)
    root = square.sqrt() / (1 - beta_2**count).sqrt().unsqueeze(1)
    new_flat = flat - (rate / (1 - beta_1**count)).unsqueeze(1) * mean / (root + epsilon)
    for tensor, new_tensor in ((first, mean), (second, square), (flat, new_flat)):
        tensor.copy_(torch.where(moves.unsqueeze(1), new_tensor, tensor))
    return torch.cat([sums[:, :SUMS].t(), norm.unsqueeze(0)])
