"""Garbage collection in the server: full collections are rare, and skip what imports left.

A full collection visits every object of pandas, plotly and torch: every visitor waits a tenth of a second and more.
Streamlit would run one after each run of the script.
"""

from __future__ import annotations

import gc
import threading
import time

INTERVAL = 10.0  # seconds between full collections
_lock = threading.Lock()
_due = 0.0  # on the monotonic clock


def freeze_imports() -> None:
    """Exempt all objects that exist now from later collections; called after heavy imports.

    The few objects of visits that are frozen with them are still freed when nothing refers to them, unless they are
    part of a cycle.
    """
    gc.collect()  # garbage that is frozen is never freed
    gc.freeze()


def collect_if_due() -> None:
    """Run a full collection, at most one per interval; called at the end of what a visit draws."""
    global _due
    with _lock:
        now = time.monotonic()
        if now < _due:
            return
        _due = now + INTERVAL
    gc.collect()
