"""Loads the C++ kernel of `replay`: the same books as `simulate` keeps, for proportional costs alone."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from finrl_pod.evaluate.simulate import WEIGHT_TOLERANCE
from finrl_pod.market.costs import HalfSpread
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.native.library import load
from finrl_pod.types import Floats, MarketTensor, Tensor

if TYPE_CHECKING:
    from finrl_pod.evaluate.replay import Job

SOURCE = Path(__file__).with_name("replay.cpp")


def proportional_rate(rules: ExecutionRules) -> float | None:
    """The one rate of a rule set that the kernel knows (long-only, fractions, scaled buys), else None."""
    if rules.whole_shares or rules.short or rules.leverage != 1 or rules.order != "proportional":
        return None
    if rules.frictions is None:
        return rules.cost_rate
    frictions = rules.frictions
    if any(not isinstance(model, HalfSpread) for model in frictions.costs):
        return None
    if frictions.participation or frictions.cash_rates or frictions.exit_return or frictions.delay != 1:
        return None
    # Long-only accounts pay no borrow fee, whatever it is.
    return rules.cost_rate + sum(model.share for model in frictions.costs if isinstance(model, HalfSpread))


def kernel_of(market: MarketTensor) -> ctypes.CDLL | None:
    """The kernel, where there is a compiler and the market lies in main memory."""
    return load(SOURCE) if market.close.device.type == "cpu" else None


def keep_books(
    kernel: ctypes.CDLL, market: MarketTensor, tables: Tensor, jobs: Sequence[Job], rates: Sequence[float], cash: float
) -> tuple[Floats, Floats, Floats] | None:
    """equity [V, L] (NaN beyond a job's last bar), turnover [V], costs [V] of every job; None where the targets of some
    job break a rule: `simulate` then says which."""
    bars, assets, _ = market.shape
    close, fill = _doubles(market.close), _doubles(market.fill)
    inverse = 1 / close
    fillable = np.ascontiguousarray(market.fillable.numpy(), dtype=np.uint8)
    ended = np.ascontiguousarray(market.ended.numpy(), dtype=np.uint8)
    every = np.ascontiguousarray(fillable.all(1), dtype=np.uint8)
    targets = tables if tables.dtype in (torch.float32, torch.float64) else tables.double()
    targets = targets.cpu().contiguous()
    spans = np.array([(job.table, job.first, job.last) for job in jobs], dtype=np.int64)
    marks = int((spans[:, 2] - spans[:, 1]).max()) + 1
    rate = np.asarray(rates, dtype=np.float64)
    equity = np.empty((len(jobs), marks))
    for v in np.flatnonzero(spans[:, 2] - spans[:, 1] + 1 < marks):
        equity[v, spans[v, 2] - spans[v, 1] + 1 :] = np.nan
    turnover, costs = np.empty(len(jobs)), np.empty(len(jobs))
    function = kernel.replay
    function.restype = ctypes.c_int64
    size = ctypes.c_int64
    broken = function(
        *(_at(array) for array in (close, inverse, fill, fillable, ended, every)),
        *(size(bars), size(assets), ctypes.c_int(market.fill_rule == "same_close")),
        *(ctypes.c_void_p(targets.data_ptr()), ctypes.c_int(targets.dtype == torch.float32), _at(spans), _at(rate)),
        *(size(len(jobs)), ctypes.c_double(cash), ctypes.c_double(WEIGHT_TOLERANCE), _at(equity), size(marks)),
        *(_at(turnover), _at(costs), ctypes.c_int(torch.get_num_threads())),
    )
    return None if broken >= 0 else (equity, turnover, costs)


def _doubles(prices: Tensor) -> Floats:
    return np.ascontiguousarray(prices.double().numpy())


def _at(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
