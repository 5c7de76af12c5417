"""The dashboard as a separate process, for tests over HTTP and in a browser."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[2]
START_TIMEOUT = 60.0  # seconds


class DashboardProcess:
    """`finrl-pod dashboard` on a free port, with its folders below `folder`. Fails if its log has an error.

    program: module of the command line.
    """

    def __init__(
        self, folder: Path, *arguments: str, journal: Path | None = None, program: str = "finrl_pod_app.cli.main"
    ) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.runs = folder / "runs"
        self.store = folder / "store"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        journal_option = [] if journal is None else ["--journal", str(journal)]
        self._command = [
            *(sys.executable, "-m", program, "dashboard", "--port", str(self.port)),
            *("--runs", str(self.runs), *journal_option, *arguments),
        ]

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    @property
    def environment(self) -> dict[str, str]:
        roots = os.pathsep.join(str(ROOT / part) for part in (".", "envs", "strategies", "app"))
        return {**os.environ, "FINRL_POD_HOME": str(self.home), "FINRL_POD_DATA": str(self.store), "PYTHONPATH": roots}

    def __enter__(self) -> DashboardProcess:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "dashboard.log").open("w") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self.folder, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + START_TIMEOUT
        while time.monotonic() < end and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/_stcore/health", timeout=2):
                    return self
            except OSError:
                time.sleep(0.1)
        raise AssertionError((self.folder / "dashboard.log").read_text())

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        log = (self.folder / "dashboard.log").read_text()
        assert "Traceback" not in log, log
        assert "Error" not in log, log

    def set_password(self, text: str) -> None:
        command = [sys.executable, "-m", "finrl_pod_app.cli.main", "dashboard", "set-password", "--stdin"]
        subprocess.run(command, input=f"{text}\n", text=True, env=self.environment, check=True, capture_output=True)
