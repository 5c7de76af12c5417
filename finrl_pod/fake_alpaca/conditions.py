"""What tests change while the exchange runs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Conditions:
    """Symbols that do not trade (halted: orders wait; untradable: orders are refused), and delays in simulated seconds.

    partial, partial_gap: as in `Settings`. suspended: the user has forbidden new orders. clock_skew: added to the time
    that GET clock tells.
    """

    halted: set[str] = field(default_factory=set)
    untradable: set[str] = field(default_factory=set)
    fill_delay: float = 0.0
    cancel_delay: float = 0.0
    replace_delay: float = 0.0
    partial: float = 0.0
    partial_gap: float = 0.0
    suspended: bool = False
    clock_skew: float = 0.0
