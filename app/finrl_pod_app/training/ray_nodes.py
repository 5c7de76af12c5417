"""Ray nodes as processes of this machine, on loopback addresses: started, killed and ended by their process ids."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from finrl_pod.errors import SetupError
from finrl_pod.process import this_process
from finrl_pod.tournament.executors.ray_connection import (
    ENVIRONMENT,
    OBJECT_STORE_BYTES,
    START_SECONDS,
    WAY_OUT,
    import_ray,
)

HEAD = "127.0.0.2"
END_SECONDS = 10.0
# `ray start --block` ends with its parent: die_with_parent, then the command line of Ray.
_START = (
    "import sys; from finrl_pod.process import die_with_parent; "
    "die_with_parent({'pid': int(sys.argv[1]), 'main_thread': sys.argv[2] == '1'}); "
    "from ray.scripts.scripts import main; sys.argv = ['ray', *sys.argv[3:]]; main()"
)


class RayNode:
    """One node: `ray start` with the processes that it started."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self._processes_by_pid: dict[int, psutil.Process] = {}

    @property
    def processes(self) -> list[psutil.Process]:
        """All processes of the node that have been seen."""
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._process.pid)
            for process in (root, *root.children(recursive=True)):
                self._processes_by_pid.setdefault(process.pid, process)
        return list(self._processes_by_pid.values())

    @property
    def pids(self) -> set[int]:
        return {process.pid for process in self.processes}

    def kill(self) -> None:
        """SIGKILL to every process of the node at once, as when a machine loses its power."""
        processes = self.processes
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()  # none can report the end of another
        for process in {*processes, *self.processes}:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        psutil.wait_procs(processes, timeout=END_SECONDS)

    def check(self) -> None:
        if self._process.poll() is not None:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            raise SetupError(f"a Ray node ended with code {self._process.returncode}: {' '.join(lines[-2:])[:300]}")


def plain_python(folder: Path) -> str:
    """Path of this interpreter without characters that a shell interprets, if need be through a link in the folder.

    Ray passes the path to a shell without quotes when it starts the client server of the head, and that server is
    required. Raises SetupError if there is no such path.
    """
    if shlex.quote(sys.executable) == sys.executable:
        return sys.executable
    prefix = Path(sys.prefix)
    executable = Path(sys.executable)
    link = folder / "python"
    if not executable.is_relative_to(prefix) or shlex.quote(str(link)) != str(link):
        raise SetupError(
            f"Ray starts no node whose path has a space or a special character, as {executable} has and a link in "
            f"{folder} would have; set TMPDIR to a folder without, or install finrl_pod in one"
        )
    if not link.is_symlink():
        link.symlink_to(prefix, target_is_directory=True)
    return str(link / executable.relative_to(prefix))


class LocalCluster:
    """A head and further nodes on this machine, with a token of their own."""

    def __init__(self, folder: Path, cpus: int) -> None:
        self._folder = folder
        self._cpus = cpus
        with socket.socket() as listener:
            listener.bind((HEAD, 0))
            self.port = int(listener.getsockname()[1])
        self.address = f"{HEAD}:{self.port}"
        token = folder / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        self.environment = {**ENVIRONMENT, "RAY_AUTH_TOKEN_PATH": str(token), "RAY_DISABLE_IMPORT_WARNING": "1"}
        self.nodes: list[RayNode] = []

    def add_node(self) -> RayNode:
        """Start the head, or one more node; returns at once."""
        number = len(self.nodes)
        options = ["--address", self.address]
        if not number:
            temporary = str(self._folder / "ray")
            options = ["--head", "--port", str(self.port), "--temp-dir", temporary, "--include-dashboard", "false"]
        log = self._folder / f"node-{number}.log"
        parent = this_process()
        command = [
            plain_python(self._folder), "-c", _START, str(parent["pid"]), str(int(parent["main_thread"])),
            "start", *options, "--node-ip-address", f"127.0.0.{2 + number}", "--num-cpus", str(self._cpus),
            "--num-gpus", "0", "--object-store-memory", str(OBJECT_STORE_BYTES), "--disable-usage-stats", "--block",
        ]  # fmt: skip
        environment = {**os.environ, **self.environment}
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environment
            )
        self.nodes.append(RayNode(process, log))
        return self.nodes[-1]

    def wait_for_head(self) -> None:
        """Wait until the head accepts connections. Raises SetupError if it ends or takes too long."""
        ends = time.monotonic() + START_SECONDS
        while True:
            self.nodes[0].check()
            with contextlib.suppress(OSError):
                socket.create_connection((HEAD, self.port), 1.0).close()
                return
            if time.monotonic() > ends:
                raise SetupError(f"the head of the Ray cluster did not answer within {START_SECONDS:g} s; {WAY_OUT}")
            time.sleep(0.1)


@contextlib.contextmanager
def local_cluster(nodes: int, cpus: int = 1) -> Iterator[LocalCluster]:
    """Cluster of so many nodes, each with its CPUs, for this process to connect to; it ends with the context.

    Raises SetupError if Ray is not installed or does not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="finrl-pod-ray-"))
    cluster = LocalCluster(folder, cpus)
    previous_values = {name: os.environ.get(name) for name in cluster.environment}
    os.environ.update(cluster.environment)
    try:
        import_ray()
        cluster.add_node()
        cluster.wait_for_head()
        for _ in range(nodes - 1):
            cluster.add_node()
        yield cluster
    finally:
        for node in cluster.nodes:
            node.kill()
        for name, value in previous_values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)
