"""Strategies by name: baselines, and custom ones, named `file.py:Class` or `package.module:Class`.

Users' code is trusted, see `finrl_pod.user_files`. A backtest guarantees that it only gets copies of past data.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from typing import Any

from finrl_pod.errors import InputError
from finrl_pod.evaluate.intrabar_orders import OrderRules
from finrl_pod.protocols import Strategy
from finrl_pod.types import Floats, Positions, Window
from finrl_pod.user_files import (
    custom_source,
    error_text,
    forget_modules,
    is_custom,
    is_file_reference,
    is_interrupt,
    stdout_to_stderr,
    unpinned,
    user_object,
)
from finrl_pod_strategies.baselines import make_baseline


class UserStrategy:
    """Adapter of a custom object to the Strategy protocol; all else that a strategy has is optional.

    name: name of the object, else of its class. strategy_hash: hash of the file and the seed it was created from, None
    without a file.
    """

    def __init__(self, make: Callable[[], Any], name: str, strategy_hash: str | None = None) -> None:
        self._make = make
        self.strategy_hash = strategy_hash
        self.inner = inner = make()
        self.name = str(getattr(inner, "name", name))
        self.feature_names: tuple[str, ...] = tuple(getattr(inner, "feature_names", ()))
        self.lookback: int | None = getattr(inner, "lookback", None)
        self.feature_lookback: int = getattr(inner, "feature_lookback", 1)
        self.orders: OrderRules | None = getattr(inner, "orders", None)

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        """Target weights [N] of the custom object, or None."""
        with stdout_to_stderr():
            weights: Floats | None = self.inner.target_weights(window, positions)
        return weights

    def recreate(self) -> UserStrategy:
        """A new instance with the same settings and no state from earlier calls."""
        return UserStrategy(self._make, self.name, self.strategy_hash)


def load_strategy(name: str, seed: int | None = None) -> Strategy:
    """The strategy of a name: a baseline, file.py:Class, or package.module:Class.

    Raises InputError as `make_baseline` and `load_user_strategy`.
    """
    return load_user_strategy(name, seed) if is_custom(name) else make_baseline(name, seed)


def load_user_strategy(name: str, seed: int | None = None) -> UserStrategy:
    """Create a custom strategy. name: file.py:Class (the file is imported again), or package.module:Class.

    seed: passed to a constructor with a parameter of that name. Raises InputError for a file that is missing or cannot
    be imported, a class that is missing or cannot be created, a seed that it does not take, and a class without a
    method `target_weights`.
    """
    strategy_class = user_object(name, f"the strategy {name}", again=True)
    class_name = name.rpartition(":")[2]
    label = f"the strategy {unpinned(name)}"
    if not inspect.isclass(strategy_class):
        raise InputError(f"{label} must be a class, got {type(strategy_class).__name__}")
    if not callable(getattr(strategy_class, "target_weights", None)):
        raise InputError(f"{label} needs a method target_weights(window, positions)")
    takes_seed = "seed" in inspect.signature(strategy_class).parameters
    if seed is not None and not takes_seed:
        raise InputError(f"{label} takes no seed; leave out the seeds or add a parameter seed")
    factory: Any = strategy_class
    try:
        factory = factory if seed is None else functools.partial(factory, seed=seed)
        with stdout_to_stderr():
            return UserStrategy(factory, class_name, strategy_hash(name, seed))
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise InputError(f"{label} could not be created: {error_text(error)}") from error


def restartable_strategy(name: str) -> tuple[UserStrategy, Callable[[], None] | None]:
    """A strategy, and a function that imports its file and features again; None without a file. Raises InputError."""
    purpose = f"the strategy {name}"
    strategy = load_user_strategy(name)
    if not is_file_reference(name):
        return strategy, None

    def restart() -> None:
        forget_modules()
        user_object(name, purpose)

    return UserStrategy(lambda: user_object(name, purpose)(), name), restart


def strategy_hash(name: str, seed: int | None = None) -> str:
    """Identity of a custom strategy: SHA-256 of the contents of its file, its name (in the file) and its seed."""
    _, text = custom_source(name, f"the strategy {name}")
    return hashlib.sha256(text.encode() + repr((name.rpartition(":")[2], seed)).encode()).hexdigest()
