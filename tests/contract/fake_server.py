"""A fake Alpaca server for the broker contract, in this process or, where torch is missing, in another interpreter's.

As a program (`python tests/contract/fake_server.py`) it reads one JSON object of settings a line and answers with
the addresses of a new server; an empty line stops the last one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MAIN_PYTHON = "FINRL_POD_MAIN_PYTHON"


@contextmanager
def serve(**options: Any) -> Iterator[dict[str, str]]:
    """{"url", "clock"} of a server whose time stands still at 8:00 on 2024-03-01. options: of its Settings."""
    if find_spec("torch") is not None:
        with tempfile.TemporaryDirectory() as folder, _here(options, Path(folder)) as places:
            yield places
        return
    worker = _worker()
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(json.dumps(options) + "\n")
    worker.stdin.flush()
    yield json.loads(worker.stdout.readline())
    worker.stdin.write("\n")
    worker.stdin.flush()
    assert worker.stdout.readline().strip() == "stopped"


@contextmanager
def _here(options: dict[str, Any], folder: Path) -> Iterator[dict[str, str]]:
    from finrl_pod.fake_alpaca.server import FakeAlpaca
    from finrl_pod.fake_alpaca.settings import CorporateAction, Settings
    from tests.fake_alpaca.serving import FIRST, STILL, a_panel

    actions = tuple(CorporateAction(**action) for action in options.pop("actions", ()))
    settings = Settings(**{"partial": 0.0, **options, "actions": actions})
    with FakeAlpaca(a_panel(), settings, start=FIRST, pace=STILL, clock=folder / "clock.json") as server:
        yield {"url": server.url, "clock": str(folder / "clock.json")}


_kept: list[subprocess.Popen[str]] = []


def _worker() -> subprocess.Popen[str]:
    """One process serves all tests: it has much to import."""
    if not _kept:
        python = os.environ[MAIN_PYTHON]
        roots = os.pathsep.join(str(ROOT / part) for part in (".", "envs", "strategies", "app"))
        _kept.append(
            subprocess.Popen(
                [python, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": roots},
            )
        )
    return _kept[0]


def main() -> None:
    for line in sys.stdin:
        with serve(**json.loads(line)) as places:
            sys.stdout.write(json.dumps(places) + "\n")
            sys.stdout.flush()
            sys.stdin.readline()
        sys.stdout.write("stopped\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
