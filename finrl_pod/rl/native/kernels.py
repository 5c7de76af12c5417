"""Operations of the policies in float32 on the CPU: tanh of a sum, scores of assets, steps of Adam.

Each has a torch version for all devices and dtypes, the reference, and a kernel in `kernels.cpp`, used if a compiler is
available. A test compares the two.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch

from finrl_pod.native.device import on_device
from finrl_pod.native.library import argument_struct, load
from finrl_pod.types import Tensor

SOURCE = Path(__file__).with_name("kernels.cpp")
LANES = 8  # the kernel of the scores takes widths that are a multiple of it


def is_supported(*tensors: Tensor) -> bool:
    """Whether the kernels can be used on these tensors: float32 on the CPU, not traced, and there is a compiler."""
    fits = all(not on_device(x.device) and x.dtype == torch.float32 for x in tensors)
    return fits and not torch.compiler.is_compiling() and load(SOURCE) is not None


def tanh_of_sum(x: Tensor, base: Tensor) -> Tensor:
    """tanh(x + base): x [B, R, H] with base [B, H], one row of it for the R rows of x."""
    if is_supported(x, base):
        return _TanhOfSum.apply(x, base)  # type: ignore[no-any-return, no-untyped-call]
    return torch.tanh(x + base.unsqueeze(1))


def asset_scores(code: Tensor, holding: Tensor, u: Tensor, w: Tensor) -> Tensor:
    """sum_h w_h tanh(code_h + holding u_h): code [P, K, N, H], holding [P, K, A, N], u, w [P, H] -> [P, K, A, N]."""
    if is_supported(code, holding) and code.shape[-1] % LANES == 0:
        return _AssetScores.apply(code, holding, u, w)  # type: ignore[no-any-return, no-untyped-call]
    p, h = u.shape
    inner = code.unsqueeze(2) + holding.unsqueeze(-1) * u.view(p, 1, 1, 1, h)  # [P, K, A, N, H]
    return (torch.tanh(inner) * w.view(p, 1, 1, 1, h)).sum(-1)


def asset_scores_address() -> int | None:
    """Address of the kernel of `asset_scores` for other compiled code, or None without a compiler."""
    library = load(SOURCE)
    return None if library is None else ctypes.cast(library.asset_scores, ctypes.c_void_p).value


def adam(
    flat: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    rate: Tensor,
    correction: Tensor,
    active: Tensor | None,
    constants: tuple[float, float, float],
) -> None:
    """One step of Adam in place on [P, D]; `rl.optimisation.optimiser.Adam.step` is the plain version.

    rate: learning rate / (1 - beta_1^t) and correction: sqrt(1 - beta_2^t), each [P]; active: [P] bool, members that
    move (None: all); constants: beta_1, beta_2, epsilon.
    """
    members, size = flat.shape
    numbers = (x.contiguous() for x in (gradient, first, second, rate, correction))
    _call("adam", flat, *numbers, active, members, size, *constants)


def adam_clipped(
    state: tuple[Tensor, Tensor, Tensor, Tensor],
    gradient: Tensor,
    rate: Tensor,
    limit: Tensor,
    loss: Tensor,
    alive: Tensor,
    constants: tuple[float, float, float],
) -> Tensor:
    """Clip the gradient, check it and step, in one pass and in place; returns the norm of every row [R].

    The plain version is the step of `rl.optimisation.optimiser`. state: parameters and both moments [R, D], step
    counts [R]; rate, limit of the norm and loss: [R]; alive: [P] bool, set to False for members with
    a norm or loss that is not finite; their rows then stay.
    """
    flat = state[0]
    norm = torch.empty_like(rate)
    members = len(alive)
    numbers = (gradient.contiguous(), *state[1:], rate, limit, loss.contiguous(), alive, norm)
    _call("adam_clipped", flat, *numbers, members, len(flat) // members, flat.shape[1], *constants)
    return norm


def _call(name: str, *arguments: Tensor | int | float | ctypes.Structure | None) -> None:
    function = getattr(load(SOURCE), name)
    function.restype = None
    function(*(_as_c_argument(x) for x in arguments))


def _as_c_argument(value: Tensor | int | float | ctypes.Structure | None) -> Any:
    if isinstance(value, torch.Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, ctypes.Structure):
        return ctypes.byref(value)
    if isinstance(value, float):
        return ctypes.c_double(value)
    return None if value is None else ctypes.c_int64(value)


class _TanhOfSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, base: Tensor) -> Tensor:
        x, base, y = x.contiguous(), base.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
        _call("tanh_of_sum", x, base, y, x.shape[0] * x.shape[1], x.shape[1], x.shape[2])
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (y,) = ctx.saved_tensors
        grad = grad.contiguous()
        grad_x = torch.empty_like(y)
        grad_base = y.new_empty(y.shape[0], y.shape[2])
        rows = y.shape[0] * y.shape[1]
        _call("tanh_of_sum_backward", y, grad, grad_x, grad_base, rows, y.shape[1], y.shape[2])
        return grad_x, grad_base


class _AssetScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, code: Tensor, holding: Tensor, u: Tensor, w: Tensor) -> Tensor:
        code, holding, u, w = (x.contiguous() for x in (code, holding, u, w))
        p, k, n, h = code.shape
        shape = argument_struct(SOURCE, "ScoreShape")(p * k, k, holding.shape[2], n, h)
        scores = torch.empty_like(holding)
        _call("asset_scores", shape, code, holding, u, w, scores)
        ctx.save_for_backward(code, holding, u, w)
        return scores

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        code, holding, u, w = ctx.saved_tensors
        p, k, n, h = code.shape
        shape = argument_struct(SOURCE, "ScoreShape")(p * k, k, holding.shape[2], n, h)
        grad_code = torch.empty_like(code)
        grad_holding = None
        if ctx.needs_input_grad[1]:
            grad_holding = torch.empty_like(holding)
        grad_u, grad_w = (code.new_empty(p, k, h) for _ in range(2))
        rest = (grad.contiguous(), grad_code, grad_holding, grad_u, grad_w)
        _call("asset_scores_backward", shape, code, holding, u, w, *rest)
        return grad_code, grad_holding, grad_u.sum(1), grad_w.sum(1)
