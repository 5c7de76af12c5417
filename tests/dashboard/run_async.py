"""Runs a coroutine in a thread: browser tests leave an event loop running in the main one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def run_async(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
