"""A fake Alpaca server for the broker contract, in this process or, without torch, in another interpreter.

As a program (`python tests/contract/fake_server.py`) it reads one JSON object of settings per line and prints the
addresses of a new server; an empty line stops that server.
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
MAIN_PYTHON_VARIABLE = "FINRL_POD_MAIN_PYTHON"


@contextmanager
def serve(**options: Any) -> Iterator[dict[str, str]]:
    """{"url", "clock"} of a server with a stopped clock at 8:00 on 2024-03-01. options: its settings."""
    if find_spec("torch") is not None:
        with tempfile.TemporaryDirectory() as folder, _serve_in_process(options, Path(folder)) as addresses:
            yield addresses
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
def _serve_in_process(options: dict[str, Any], folder: Path) -> Iterator[dict[str, str]]:
    from finrl_pod.fake_alpaca.server import FakeAlpaca
    from finrl_pod.fake_alpaca.settings import CorporateAction, Settings
    from tests.fake_alpaca.server_fixtures import START_DATE, STOPPED, small_panel

    actions = tuple(CorporateAction(**action) for action in options.pop("actions", ()))
    settings = Settings(**{"partial": 0.0, **options, "actions": actions})
    clock = folder / "clock.json"
    with FakeAlpaca(small_panel(), settings, start=START_DATE, pace=STOPPED, clock=clock) as server:
        yield {"url": server.url, "clock": str(clock)}


_workers: list[subprocess.Popen[str]] = []


def _worker() -> subprocess.Popen[str]:
    """The process that serves all tests: its imports take long."""
    if not _workers:
        python = os.environ[MAIN_PYTHON_VARIABLE]
        roots = os.pathsep.join(str(ROOT / part) for part in (".", "envs", "strategies", "app"))
        _workers.append(
            subprocess.Popen(
                [python, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": roots},
            )
        )
    return _workers[0]


def main() -> None:
    for line in sys.stdin:
        with serve(**json.loads(line)) as addresses:
            sys.stdout.write(json.dumps(addresses) + "\n")
            sys.stdout.flush()
            sys.stdin.readline()
        sys.stdout.write("stopped\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
