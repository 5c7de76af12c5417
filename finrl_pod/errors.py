"""Exceptions raised by finrl_pod.

FinrlPodError                 base; the command line prints the message and exits with `exit_code`
├── InputError                2: invalid input from a user, a file or a config
│   ├── DataError             invalid prices, or a problem with their source
│   │   └── FetchError        a source could not deliver
│   │       └── MissingSymbols    it has no bars of some symbols
│   ├── FeatureError          unknown feature, or missing columns
│   ├── ConfigError           invalid config key, value or file
│   ├── RunError              run directory or snapshot missing, damaged or of another config
│   ├── RegistryError         registry of agents unreachable, not writable or damaged, or without the named agent
│   ├── JournalError          paper-trading journal missing, in use, not writable, of another account or version
│   └── AddressNotAllowed     broker address not on the allow-list
├── BrokerError               2: problem between the client and a broker
│   ├── BrokerUnavailable     outcome unknown: timeout, connection reset, 5xx, unreadable response
│   ├── BrokerRejected        the broker rejected the request
│   └── AuthenticationError   the broker rejected the API keys
├── SetupError                2: something on this machine is missing or unusable: a package, a device, a port, API keys
├── DaemonError               1: unexpected failure of the paper-trading daemon
└── Interrupted               130: stopped by the user, state saved
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

MAX_LISTED = 24  # names in a message
MAX_SHOWN = 80  # characters of a value in a message


class FinrlPodError(Exception):
    """Base of all errors raised by finrl_pod. The message gives the value, the rule and a fix.

    It cuts endless words, such as those of a damaged file.
    """

    exit_code = 2

    def __init__(self, message: str = "") -> None:
        super().__init__(re.sub(r"\S{500,}", lambda word: f"{word[0][:80]}...", message))


class InputError(FinrlPodError):
    """Invalid input from a user, a file or a config."""


class DataError(InputError):
    """Prices that break a rule of the panel."""


class FetchError(DataError):
    """A data source could not deliver the requested bars."""


class MissingSymbols(FetchError):
    """A data source has no bars of some symbols in the requested range."""

    def __init__(self, message: str, symbols: Sequence[str]) -> None:
        super().__init__(message)
        self.symbols = tuple(symbols)


class FeatureError(InputError):
    """Unknown feature, or a feature whose columns the panel lacks."""


class UndefinedFeatureError(FeatureError):
    """A feature has no value on the bars on which it is needed."""


class ConfigError(InputError):
    """Invalid config key, value or file."""


class RunError(InputError):
    """A run directory or snapshot is missing, corrupt, or belongs to another config."""


class RegistryError(InputError):
    """The registry of agents cannot be reached or written, is damaged, or lacks the named agent or champion."""


class JournalError(InputError):
    """The paper-trading journal is missing, in use, not writable, or of another account or version."""


class AddressNotAllowed(InputError):
    """The broker address is not on the allow-list; no key was sent to it."""


class BrokerError(FinrlPodError):
    """Problem between the client and a broker."""


class BrokerUnavailable(BrokerError):
    """Outcome unknown: timeout, broken connection, server error or unreadable response."""


class BrokerRejected(BrokerError):
    """The broker rejected the request."""


class AuthenticationError(BrokerError):
    """The broker rejected the API keys; no further order may be sent with them."""


class SetupError(FinrlPodError):
    """Something on this machine is missing or unusable: a package, a device, a port, API keys."""


class DaemonError(FinrlPodError):
    """Unexpected failure of the paper-trading daemon; restarting it may help."""

    exit_code = 1


class Interrupted(FinrlPodError):
    """Stopped by the user; progress is saved and can be resumed."""

    exit_code = 130


def shown(value: object) -> str:
    """A value for messages: its repr in at most 80 characters, or the name of its type if that says more."""
    if isinstance(value, int) and value.bit_length() > MAX_SHOWN:
        return f"a whole number of {value.bit_length():,} bits"
    text = repr(value) if isinstance(value, str | int | float | None) else ""
    if not text and isinstance(value, list | tuple | dict):
        text = repr(value) if len(value) <= MAX_SHOWN else f"a {type(value).__name__} of {len(value):,} items"
    text = " ".join((text or f"an object of the type {type(value).__name__}").split())
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def closest_name(name: str, candidates: Iterable[str]) -> str | None:
    """The known name that most resembles an unknown one in any case, for messages; None if none does."""
    lower = {candidate.lower(): candidate for candidate in candidates}
    initials = [key for key in lower if "_" in key and "".join(word[:1] for word in key.split("_")) == name.lower()]
    if len(initials) == 1:  # lr is learning_rate
        return lower[initials[0]]
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    return lower[close[0]] if close else None


def listed(names: Sequence[str]) -> str:
    """Names for a message, separated by commas; the first ones of a long list."""
    if len(names) <= MAX_LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:MAX_LISTED])} and {len(names) - MAX_LISTED} more"


def count_text(count: int, noun: str) -> str:
    """A count with its noun: 1 bar, 2 bars, 1,234 bars. noun: singular, with a regular plural."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def did_you_mean(path: Path) -> str:
    """The end of a message on a missing path: "; did you mean X?" with the closest path that exists, or empty."""
    close = _closest_path(path)
    return f"; did you mean {close}?" if close else ""


def _closest_path(path: Path) -> Path | None:
    """The existing path that most resembles a missing one."""
    folder: Path | None = path.parent
    if not path.parent.exists() and path.parent != path:
        folder = _closest_path(path.parent)
    if folder is None:
        return None
    if (folder / path.name).exists():
        return folder / path.name
    try:
        stems = [entry.stem for entry in folder.iterdir() if entry.suffix == path.suffix]
    except OSError:
        return None
    close = closest_name(path.stem, stems)
    return folder / f"{close}{path.suffix}" if close else None
