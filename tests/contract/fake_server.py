"""A fake Alpaca server for the broker contract."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from finrl_pod.fake_alpaca.server import FakeAlpaca
from finrl_pod.fake_alpaca.settings import CorporateAction, Settings
from tests.fake_alpaca.server_fixtures import START_DATE, STOPPED, small_panel


@contextmanager
def serve(**options: Any) -> Iterator[dict[str, str]]:
    """{"url", "clock"} of a server with a stopped clock at 8:00 on 2024-03-01. options: its settings."""
    actions = tuple(CorporateAction(**action) for action in options.pop("actions", ()))
    settings = Settings(**{"partial": 0.0, **options, "actions": actions})
    with tempfile.TemporaryDirectory() as folder:
        clock = Path(folder) / "clock.json"
        with FakeAlpaca(small_panel(), settings, start=START_DATE, pace=STOPPED, clock=clock) as server:
            yield {"url": server.url, "clock": str(clock)}
