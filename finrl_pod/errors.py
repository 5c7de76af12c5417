"""Every error this project raises on purpose.

FinrlPodError                 one clear sentence; the command line prints it and exits with `exit_code`
├── InputError                2: bad input from a person, a file or a config
│   ├── DataError             prices: what they hold, where they come from
│   │   └── FetchError        a source did not deliver
│   ├── FeatureError          a feature that is unknown or lacks its columns
│   ├── ConfigError           a config key, value or file
│   └── RunError              a run directory, a snapshot
├── EnvironmentLacks          2: the machine lacks something (a device, an optional package)
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


class EnvironmentLacks(FinrlPodError):
    """Something this machine does not have: a device, an optional package."""


class Interrupted(FinrlPodError):
    """Stopped by the user; what was reached is saved and can be resumed."""

    exit_code = 130
