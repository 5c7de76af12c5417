"""The server of the dashboard: `serve` replaces the process of the command by this module run as a program.

The program runs the ASGI application of Streamlit behind `RequestGuard` and loads what the first page needs in the
background; otherwise the first visitor would wait for pandas.
"""

from __future__ import annotations

import importlib
import importlib.util
import ipaddress
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from finrl_pod.errors import InputError, SetupError
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.logins import Logins, cookie_name
from finrl_pod_app.dashboard.passwords import Password, PasswordGuard, is_loopback
from finrl_pod_app.dashboard.settings import Settings

MAX_UPLOAD_MB = 100
SCRIPT = Path(__file__).parents[1] / "script" / "main.py"
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
REQUIRED_PACKAGES = ("streamlit", "plotly", "argon2")
PRELOADED = ("pandas", "pyarrow", "finrl_pod_app.dashboard.pages.overview")


def serve(settings: Settings, address: str, port: int) -> None:
    """Replace this process by the server. The server exits with 0 on SIGINT and SIGTERM. Does not return.

    Raises SetupError if a package is missing or the port is taken, InputError for an address that is not allowed
    or a journal that does not exist.
    """
    missing = [name for name in REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise SetupError(f"the dashboard needs {missing[0]}: pip install 'finrl-pod[dashboard]'")
    check_address(address, settings.hosts)
    for journal in settings.journals:
        if not journal.is_file():
            raise InputError(f"--journal {journal} is not a file; omit it to search for journals")
    check_port(address, port)
    host = f"[{address}]" if ":" in address else address
    sys.stderr.write(f"dashboard: http://{host}:{port} (Ctrl-C to stop; running trainings continue)\n")
    sys.stderr.flush()
    # The new process must find the same modules as this one.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, **settings.to_environment(), "PYTHONPATH": path}
    command = [sys.executable, "-m", "finrl_pod_app.dashboard.serving.server", address, str(port)]
    os.execve(sys.executable, command, environment)


def streamlit_options(address: str, port: int, hosts: Sequence[str] = ()) -> Mapping[str, theme.ThemeOption]:
    """Options of Streamlit: no telemetry, no access from other origins, limited uploads, the theme of the dashboard.

    hosts: further host names under which browsers may reach the server.
    """
    return {
        "server.address": address,
        "server.port": port,
        "server.headless": True,
        "server.enableXsrfProtection": True,
        "server.enableCORS": True,
        # Rejects host names that were pointed at this address by others (DNS rebinding).
        "server.allowedHosts": list(dict.fromkeys([*direct_hosts(address), *hosts])),
        "server.maxUploadSize": MAX_UPLOAD_MB,
        "server.fileWatcherType": "none",
        "server.showEmailPrompt": False,
        "browser.gatherUsageStats": False,
        "browser.serverAddress": address,
        "logger.hideWelcomeMessage": True,
        "client.toolbarMode": "viewer",
        "client.showErrorDetails": "type",
        "client.showErrorLinks": "false",
        "runner.magicEnabled": False,
        **theme.streamlit_theme(),
    }


def direct_hosts(address: str) -> list[str]:
    """Host names under which browsers on this machine and, for other addresses, of its networks reach the server."""
    return list(dict.fromkeys(["localhost", "127.0.0.1", "::1", *_own_hosts(address)]))


def check_address(address: str, hosts: Sequence[str] = ()) -> None:
    """Raises InputError for an invalid address or host name, and for access by other machines without a password."""
    try:
        local = is_loopback(address)
    except ValueError:
        raise InputError(f"--address must be an IP address such as 127.0.0.1, got {address!r}") from None
    for host in hosts:
        if not HOST_NAME.fullmatch(host):
            raise InputError(f"--host must be a name such as dash.example.org, without scheme and port, got {host!r}")
    if (hosts or not local) and not Password().is_set:
        reason = f"--address {address} can be reached from other machines"
        if hosts:
            reason = f"--host {hosts[0]} allows access by other machines"
        raise InputError(f"{reason} and needs a password: set one with finrl-pod dashboard set-password")


def check_port(address: str, port: int) -> None:
    """Raises SetupError if the port cannot be bound."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise SetupError(
                f"port {port} on {address} cannot be used: {error.strerror}; choose another with --port"
            ) from None


def main() -> None:
    """Serve on the address and port that this process was given. Does not return."""
    from starlette.middleware import Middleware
    from starlette.routing import Route
    from streamlit import App

    from finrl_pod_app.dashboard.actions.report_route import PATH, serve_report
    from finrl_pod_app.dashboard.serving.login_gate import LoginGate
    from finrl_pod_app.dashboard.serving.request_guard import RequestGuard

    address = sys.argv[1]
    port = int(sys.argv[2])
    hosts = Settings.from_environment(os.environ).hosts
    os.environ["FORWARDED_ALLOW_IPS"] = ""  # the gate reads the headers of proxies
    sys.argv = [str(SCRIPT)]  # Streamlit looks for its configuration beside the program
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit)  # called again by uvicorn after its shutdown
    threading.Thread(target=_preload, daemon=True).start()
    middleware = [Middleware(RequestGuard, hosts=direct_hosts(address), proxy_hosts=hosts)]
    if hosts or not is_loopback(address):
        guard = PasswordGuard(Password())
        middleware.append(Middleware(LoginGate, Logins(), guard, cookie=cookie_name(port), behind_proxy=bool(hosts)))
    routes = [Route(PATH, serve_report, methods=["GET"])]
    App(SCRIPT, routes=routes, middleware=middleware).run(config=streamlit_options(address, port, hosts))


def _exit(number: int, frame: object) -> None:  # noqa: ARG001 - the interface of signal handlers
    sys.exit(0)


def _preload() -> None:
    """Import what the first page needs and read the runs, so that the first visitor waits for neither."""
    for name in PRELOADED:
        importlib.import_module(name)
    from finrl_pod_app.dashboard.pages import cached
    from finrl_pod_app.dashboard.queries.runs import find_runs

    for run in find_runs(Settings.from_environment(os.environ).runs):
        cached.summary(run)


def _own_hosts(address: str) -> list[str]:
    """Addresses and names of this machine that browsers may use; of every interface for 0.0.0.0 and ::."""
    if address == "localhost" or not ipaddress.ip_address(address).is_unspecified:
        return [address]
    import psutil

    interfaces = (entry for entries in psutil.net_if_addrs().values() for entry in entries)
    numbers = [entry.address for entry in interfaces if entry.family in (socket.AF_INET, socket.AF_INET6)]
    return [*(number.partition("%")[0] for number in numbers), socket.gethostname()]


if __name__ == "__main__":
    main()
