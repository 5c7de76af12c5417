"""Starts daemons without the cost of their imports: one interpreter with everything loaded forks a process for each.

Each child runs the real command line. Requests are JSON lines {"arguments", "environment", "log", "hooks"}; responses
are {"pid"} when a child started and {"pid", "code"} when it ended.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
from typing import Any

INTERNAL_ERROR = 70


def preload() -> None:
    """Import and compute everything that a daemon needs before its first request."""
    import finrl_pod_app.paper.runner

    from finrl_pod.paper.brokers.alpaca.client import AlpacaPyLibrary
    from finrl_pod.paper.brokers.alpaca.credentials import Keys
    from finrl_pod.paper.brokers.alpaca.transport import RequestContext
    from finrl_pod.paper.domain.clocks import SystemClock
    from finrl_pod.paper.domain.schedule import Calendar
    from tests.paper.process import daemon_main

    assert finrl_pod_app.paper.runner.run_daemon
    Calendar()
    AlpacaPyLibrary("http://127.0.0.1:1", "http://127.0.0.1:1", Keys("k", "s"), RequestContext(SystemClock()))
    daemon_main.add_strategies()


def run_daemon(request: dict[str, Any]) -> int:
    """Run the command line in a forked child, with a separate log, signal handlers and sockets."""
    with open(request["log"], "ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.clear()
    os.environ.update(request["environment"])
    from finrl_pod_app.cli.main import run

    from tests.paper.process import fault_hooks

    fault_hooks.install(request["hooks"])
    sys.argv[1:] = request["arguments"]
    return run()


def main() -> None:
    preload()
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    respond({"ready": True})
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        selector.register(read, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj == read:
                    os.read(read, 4096)
                    report_ended_children()
                    continue
                line = sys.stdin.readline()
                if not line:
                    return
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(0)
                    code = INTERNAL_ERROR
                    try:
                        code = run_daemon(json.loads(line))
                    finally:
                        sys.stdout.flush()
                        sys.stderr.flush()
                        os._exit(code)
                respond({"pid": pid})


def report_ended_children() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        respond({"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def respond(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
