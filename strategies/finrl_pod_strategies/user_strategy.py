"""A strategy from a user's own file, named as `file.py:Class`.

The file is imported and runs with the rights of whoever started the program: it is trusted code, nothing fences it in.
What a backtest does guarantee is that the object is handed copies of the past alone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from finrl_pod.errors import InputError
from finrl_pod.protocols import Strategy
from finrl_pod.types import Floats, Positions, Window


def is_file_reference(text: str) -> bool:
    """Whether `text` has the form file.py:Class."""
    path, _, name = text.rpartition(":")
    return path.endswith(".py") and bool(name)


class UserStrategy:
    """A user's object behind the Strategy protocol; `name` and `feature_names` may be left out.

    name: the object's, else its class's. Attributes `feature_names` (default none) and `lookback` (bars; default all).
    strategy_hash: of the file and the seed that it was made from, None where there is no file.
    """

    def __init__(self, make: Callable[[], Any], name: str, strategy_hash: str | None = None) -> None:
        self._make, self.strategy_hash = make, strategy_hash
        self.inner = inner = make()
        self.name = str(getattr(inner, "name", name))
        self.feature_names: tuple[str, ...] = tuple(getattr(inner, "feature_names", ()))
        self.lookback: int | None = getattr(inner, "lookback", None)

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        with _told_apart():
            weights: Floats | None = self.inner.target_weights(window, positions)
        return weights

    def again(self) -> UserStrategy:
        """A new one that has seen nothing yet, with the same settings."""
        return UserStrategy(self._make, self.name, self.strategy_hash)


def load_user_strategy(text: str, seed: int | None = None) -> Strategy:
    """Import `file.py` and make its `Class`. seed: passed to a constructor that has a parameter of that name.

    Raises InputError for a file that is missing or does not import, a class that is missing, needs other arguments,
    takes no seed where one is given, or has no method `target_weights`.
    """
    file, _, name = text.rpartition(":")
    made = getattr(_module(Path(file), text), name, None)
    if not inspect.isclass(made):
        raise InputError(f"{file} has no class {name}; name one that is in it, as {Path(file).name}:MyStrategy")
    if not callable(getattr(made, "target_weights", None)):
        raise InputError(f"class {name} in {file} has no method target_weights(window, positions); give it one")
    takes_seed = "seed" in inspect.signature(made).parameters
    if seed is not None and not takes_seed:
        raise InputError(f"class {name} in {file} takes no seed; leave the seeds out or give its __init__ one")
    factory: Any = made
    try:
        factory = factory if seed is None else functools.partial(factory, seed=seed)
        with _told_apart():
            return UserStrategy(factory, name, strategy_hash(text, seed))
    except (Exception, SystemExit) as error:
        raise InputError(f"{name} of {file} could not be made: {_words(error)}") from error


def strategy_hash(text: str, seed: int | None = None) -> str:
    """What names a user's strategy: the text of its file, its class and its seed, hashed."""
    file, _, name = text.rpartition(":")
    return hashlib.sha256(Path(file).read_bytes() + repr((name, seed)).encode()).hexdigest()


def _module(path: Path, text: str) -> Any:
    if not path.is_file():
        raise InputError(f"there is no file {path} for the strategy {text}; name it as path/to/file.py:Class")
    spec = importlib.util.spec_from_file_location(f"finrl_pod_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} cannot be imported as Python; name it as path/to/file.py:Class")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        with _told_apart():
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path} could not be imported: {_words(error)}") from error
    return module


def _told_apart() -> contextlib.AbstractContextManager[Any]:
    """What a user's code prints goes to standard error: standard output may have to be one JSON object."""
    return contextlib.redirect_stdout(sys.stderr)


def _words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
