"""Starts the dashboard's server: this process becomes Streamlit's, so that nothing is left behind when it ends."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from finrl_pod.errors import InputError, SetupError
from finrl_pod_app.dashboard.passwords import Password
from finrl_pod_app.dashboard.settings import Settings

UPLOAD_MB = 100  # the largest file that may be imported from a page
SCRIPT = Path(__file__).parent / "script" / "main.py"
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
NEEDS = ("streamlit", "plotly", "argon2")


def serve(settings: Settings, address: str, port: int) -> None:
    """Become the server, which SIGINT and SIGTERM end with 0. It does not return.

    Raises SetupError without Streamlit or where the port is taken, InputError for an address that may not be
    used or a journal that is not there.
    """
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise SetupError(f"the dashboard needs {missing[0]}: pip install 'finrl-pod[dashboard]'")
    check_address(address, settings.hosts)
    if settings.journal is not None and not settings.journal.is_file():
        raise InputError(f"--journal {settings.journal} is no file; leave it out to have the journal looked for")
    check_port(address, port)
    sys.stderr.write(f"dashboard: http://{_in_url(address)}:{port} (Ctrl-C ends it; a training that runs goes on)\n")
    sys.stderr.flush()
    # The script's module must be found by the new process as by this one.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    variables = {**os.environ, **settings.variables(), "PYTHONPATH": path}
    os.execve(sys.executable, [sys.executable, "-m", *command(address, port, settings.hosts)], variables)


def command(address: str, port: int, hosts: Sequence[str] = ()) -> list[str]:
    """Arguments of `python -m` that run the server on an address."""
    flags = (f"--{name}={value}" for name, values in options(address, port, hosts).items() for value in _each(values))
    return ["finrl_pod_app.dashboard.server", "run", str(SCRIPT), *flags]


def options(address: str, port: int, hosts: Sequence[str] = ()) -> Mapping[str, object]:
    """Streamlit's options: nothing is sent out, nobody else's page may talk to the server, uploads are limited.

    hosts: names under which browsers on other machines ask for it.
    """
    return {
        "server.address": address,
        "server.port": port,
        "server.headless": "true",
        "server.enableXsrfProtection": "true",
        "server.enableCORS": "true",
        # A foreign name that was bent to this address (DNS rebinding) is turned away.
        "server.allowedHosts": list(dict.fromkeys(["localhost", "127.0.0.1", "::1", *_reached_at(address), *hosts])),
        "server.maxUploadSize": UPLOAD_MB,
        "server.fileWatcherType": "none",
        "server.showEmailPrompt": "false",
        "browser.gatherUsageStats": "false",
        "browser.serverAddress": address,
        "logger.hideWelcomeMessage": "true",
        "client.toolbarMode": "viewer",
        "client.showErrorDetails": "type",
        "client.showErrorLinks": "false",
        "runner.magicEnabled": "false",
        # White text stands on the first colour, and it stands on the second: both have to be read.
        "theme.light.primaryColor": "#0b6bcb",
        "theme.light.backgroundColor": "#ffffff",
        "theme.dark.primaryColor": "#1f77d0",
        "theme.dark.backgroundColor": "#0e1117",
        "theme.dark.secondaryBackgroundColor": "#262730",
    }


def check_address(address: str, hosts: Sequence[str] = ()) -> None:
    """Raises InputError for what other machines reach while no password is set, and for what is no address or host."""
    try:
        own = is_own(address)
    except ValueError:
        raise InputError(f"--address must be an IP address such as 127.0.0.1, got {address!r}") from None
    for host in hosts:
        if not HOST.fullmatch(host):
            raise InputError(f"--host must be a name such as dash.example.org, without scheme and port, got {host!r}")
    if hosts and not Password().is_set:
        raise InputError(
            f"--host {hosts[0]} lets other machines in, which needs a password: "
            "set one with finrl-pod dashboard set-password"
        )
    if not own and not Password().is_set:
        raise InputError(
            f"--address {address} can be reached from other machines, which needs a password: "
            "set one with finrl-pod dashboard set-password"
        )


def is_own(address: str) -> bool:
    """Whether only this machine reaches it. Raises ValueError for what is no address."""
    return address == "localhost" or ipaddress.ip_address(address).is_loopback


def _reached_at(address: str) -> list[str]:
    """The numbers in a browser's address line: of every interface where the server listens on all."""
    if address == "localhost" or not ipaddress.ip_address(address).is_unspecified:
        return [address]
    import psutil

    interfaces = (each for own in psutil.net_if_addrs().values() for each in own)
    numbers = [each.address for each in interfaces if each.family in (socket.AF_INET, socket.AF_INET6)]
    return [*(number.partition("%")[0] for number in numbers), socket.gethostname()]


def check_port(address: str, port: int) -> None:
    """Raises SetupError where nothing can listen there."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise SetupError(
                f"port {port} on {address} cannot be used: {error.strerror}; name another with --port"
            ) from None


def _each(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else [value]


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
