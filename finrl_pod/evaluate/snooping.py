"""Is the best of several models better than a benchmark, given that the best was looked for?

The Reality Check (White 2000) and the test of superior predictive ability (Hansen 2005), both under the stationary
bootstrap, from `arch`; blocks by Politis and White (2004) on the benchmark's returns less the mean of the models'.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.errors import InputError
from finrl_pod.evaluate.sharpe import NO_RISK
from finrl_pod.evaluate.statistics import DRAWS, MIN_BARS, block_length
from finrl_pod.types import Floats


def reality_check(benchmark: ArrayLike, models: ArrayLike, *, seed: int = 0, draws: int = DRAWS) -> float:
    """p-value against "no model has a larger mean return than the benchmark" (White 2000), not studentised.

    benchmark: [T] returns; models: [T] or [T, M] returns over the same bars. Raises InputError for fewer than
    `MIN_BARS` bars, other lengths, NaN, and a model that differs from the benchmark by a constant.
    """
    return _p_value(benchmark, models, seed, draws, studentize=False, which="upper")


def superior_ability(benchmark: ArrayLike, models: ArrayLike, *, seed: int = 0, draws: int = DRAWS) -> float:
    """The same by Hansen's (2005) studentised test with the consistent centring: bad models cost it no power."""
    return _p_value(benchmark, models, seed, draws, studentize=True, which="consistent")


def _p_value(benchmark: ArrayLike, models: ArrayLike, seed: int, draws: int, *, studentize: bool, which: str) -> float:
    from arch.bootstrap import SPA

    if draws < 1:
        raise InputError(f"a bootstrap needs at least one draw, got {draws}")
    base, others = _checked(benchmark, models)
    excess = others - base[:, None]
    test = SPA(
        -base,  # it compares losses
        -others,
        block_size=max(1, round(block_length(excess.mean(1)))),
        reps=draws,
        studentize=studentize,
        seed=np.random.default_rng(seed),
    )
    test.compute()
    # The sample itself is one of its resamples (Davison and Hinkley 1997, 4.2.1): no p-value is zero.
    return (1 + draws * float(test.pvalues[which])) / (1 + draws)


def _checked(benchmark: ArrayLike, models: ArrayLike) -> tuple[Floats, Floats]:
    base, others = np.asarray(benchmark, dtype=np.float64), np.asarray(models, dtype=np.float64)
    others = others[:, None] if others.ndim == 1 else others
    if base.ndim != 1 or others.ndim != 2 or len(base) != len(others) or not others.shape[1]:
        raise InputError(
            f"a benchmark [T] is compared with models [T, M] over the same bars, got {base.shape} and {others.shape}"
        )
    if len(base) < MIN_BARS:
        raise InputError(f"a comparison of models needs {MIN_BARS} bars at least, got {len(base)}")
    for name, values in (("benchmark", base), ("models", others)):
        if not np.isfinite(values).all():
            bar = int(np.argwhere(~np.isfinite(values))[0][0])
            raise InputError(f"returns of the {name} must be finite, at bar {bar} they are not")
    for m, excess in enumerate((others - base[:, None]).T):
        if excess.std() <= NO_RISK:
            raise InputError(f"model {m} differs from the benchmark by a constant {excess[0]:g}: leave it out")
    return base, others
