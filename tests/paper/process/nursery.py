"""Daemons without the wait for their imports: one interpreter that has loaded everything forks a process for each.

Each child runs the very command line. Told by JSON lines: {"arguments", "environment", "log", "hooks"}; answers with
{"pid"} and, once a child has ended, {"pid", "code"}.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
from typing import Any


def load() -> None:
    """Everything that a daemon imports or computes before its first request."""
    import finrl_pod_app.paper.runner

    from finrl_pod.paper.brokers.alpaca.client import AlpacaPyLibrary
    from finrl_pod.paper.brokers.alpaca.credentials import Keys
    from finrl_pod.paper.brokers.alpaca.transport import RequestContext
    from finrl_pod.paper.runtime.clocks import SystemClock
    from finrl_pod.paper.runtime.schedule import Calendar
    from tests.paper.process import daemon

    assert finrl_pod_app.paper.runner.run_daemon
    Calendar()
    AlpacaPyLibrary("http://127.0.0.1:1", "http://127.0.0.1:1", Keys("k", "s"), RequestContext(SystemClock()))
    daemon.add_strategies()


def child(wish: dict[str, Any]) -> int:
    """The daemon. Its journal, signals and sockets are its own."""
    with open(wish["log"], "ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.clear()
    os.environ.update(wish["environment"])
    from finrl_pod_app.cli.main import run

    from tests.paper.process import hooks

    hooks.put_in(wish["hooks"])
    return run(wish["arguments"])


def main() -> None:
    load()
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    say({"ready": True})
    with selectors.DefaultSelector() as waiting:
        waiting.register(sys.stdin, selectors.EVENT_READ)
        waiting.register(read, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fileobj == read:
                    os.read(read, 4096)
                    reap()
                    continue
                line = sys.stdin.readline()
                if not line:
                    return
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(0)
                    code = 70  # an exception that nobody thought of
                    try:
                        code = child(json.loads(line))
                    finally:
                        sys.stdout.flush()
                        sys.stderr.flush()
                        os._exit(code)
                say({"pid": pid})


def reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        say({"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def say(words: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
