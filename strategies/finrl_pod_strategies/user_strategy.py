"""Strategies from users' own files, named as `file.py:Class`.

The file is trusted code, see `finrl_pod.user_files`. A backtest guarantees that it only gets copies of past data.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from finrl_pod.errors import InputError
from finrl_pod.evaluate.intrabar_orders import OrderRules
from finrl_pod.protocols import Strategy
from finrl_pod.types import Floats, Positions, Window
from finrl_pod.user_files import error_text, import_user_file, source_text, stdout_to_stderr


class UserStrategy:
    """Adapter of a user's object to the Strategy protocol; all else that a strategy has is optional.

    name: the object's, else its class's. strategy_hash: of the file and the seed it was created from, None without a
    file.
    """

    def __init__(self, make: Callable[[], Any], name: str, strategy_hash: str | None = None) -> None:
        self._make, self.strategy_hash = make, strategy_hash
        self.inner = inner = make()
        self.name = str(getattr(inner, "name", name))
        self.feature_names: tuple[str, ...] = tuple(getattr(inner, "feature_names", ()))
        self.lookback: int | None = getattr(inner, "lookback", None)
        self.feature_lookback: int = getattr(inner, "feature_lookback", 1)
        self.orders: OrderRules | None = getattr(inner, "orders", None)

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        """Target weights [N] of the user's object, or None."""
        with stdout_to_stderr():
            weights: Floats | None = self.inner.target_weights(window, positions)
        return weights

    def recreate(self) -> UserStrategy:
        """A new instance with the same settings and no state from earlier calls."""
        return UserStrategy(self._make, self.name, self.strategy_hash)


def load_user_strategy(text: str, seed: int | None = None) -> Strategy:
    """Import `file.py` and create its `Class`. seed: passed to a constructor with a parameter of that name.

    Raises InputError for a file that is missing or cannot be imported, a class that is missing or cannot be created, a
    seed that it does not take, and a class without a method `target_weights`.
    """
    file, _, name = text.rpartition(":")
    found = getattr(import_user_file(Path(file), f"the strategy {text}"), name, None)
    if not inspect.isclass(found):
        raise InputError(f"{file} has no class {name}; give one that it defines, as {Path(file).name}:MyStrategy")
    if not callable(getattr(found, "target_weights", None)):
        raise InputError(f"class {name} in {file} needs a method target_weights(window, positions)")
    takes_seed = "seed" in inspect.signature(found).parameters
    if seed is not None and not takes_seed:
        raise InputError(f"class {name} in {file} takes no seed; leave out the seeds or add a parameter seed")
    factory: Any = found
    try:
        factory = factory if seed is None else functools.partial(factory, seed=seed)
        with stdout_to_stderr():
            return UserStrategy(factory, name, strategy_hash(text, seed))
    except (Exception, SystemExit) as error:
        raise InputError(f"{name} of {file} could not be created: {error_text(error)}") from error


def strategy_hash(text: str, seed: int | None = None) -> str:
    """Identity of a user's strategy: SHA-256 of its file's contents, its class name and its seed."""
    file, _, name = text.rpartition(":")
    return hashlib.sha256(source_text(Path(file)).encode() + repr((name, seed)).encode()).hexdigest()
