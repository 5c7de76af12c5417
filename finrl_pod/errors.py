"""Every error this project raises on purpose.

FinrlPodError                 one clear sentence; the command line prints it and exits with `exit_code`
├── InputError                2: bad input from a person, a file or a config
│   ├── DataError             prices: what they hold, where they come from
│   │   └── FetchError        a source did not deliver
│   ├── FeatureError          a feature that is unknown or lacks its columns
│   ├── ConfigError           a config key, value or file
│   ├── RunError              a run directory, a snapshot
│   ├── JournalError          the paper-trading journal: of another account, of a newer version, held by another daemon
│   └── AddressRefused        a broker's address off the allow-list
├── BrokerError               2: a broker's answer, or none
│   ├── BrokerUnavailable     nothing is known: timeout, reset, 5xx, an answer that cannot be read
│   ├── BrokerRefused         the broker answered no
│   └── KeysRefused           the broker does not take the keys
├── EnvironmentLacks          2: the machine lacks something (a device, an optional package)
├── DaemonFailed              1: the paper-trading daemon met what it does not foresee
└── Interrupted               130: stopped by the user, state saved
"""

from __future__ import annotations


class FinrlPodError(Exception):
    """Base of all errors raised on purpose: its text is one sentence naming the rule, the value and the mend."""

    exit_code = 2


class InputError(FinrlPodError):
    """Bad input from a person, a file or a config."""


class DataError(InputError):
    """Prices that break a rule of the panel."""


class FetchError(DataError):
    """A source that did not deliver what was asked."""


class FeatureError(InputError):
    """A feature that is unknown, or whose columns the panel lacks."""


class ConfigError(InputError):
    """A config key, value or file that cannot be used."""


class RunError(InputError):
    """A run directory or snapshot that is missing, corrupt, or of another config."""


class JournalError(InputError):
    """The journal of paper trading: missing, of another account or version, in use, or not writable."""


class AddressRefused(InputError):
    """A broker's address that is not on the allow-list; no key was sent to it."""


class BrokerError(FinrlPodError):
    """Something between us and a broker."""


class BrokerUnavailable(BrokerError):
    """Nothing is known: no answer in time, a broken connection, a server's fault, an answer that cannot be read."""


class BrokerRefused(BrokerError):
    """The broker understood and answered no."""


class KeysRefused(BrokerError):
    """The broker does not take the keys: nothing may be sent with them any more."""


class EnvironmentLacks(FinrlPodError):
    """Something this machine does not have: a device, an optional package."""


class DaemonFailed(FinrlPodError):
    """Something that the paper-trading daemon does not foresee ended it; starting it again may do."""

    exit_code = 1


class Interrupted(FinrlPodError):
    """Stopped by the user; what was reached is saved and can be resumed."""

    exit_code = 130
