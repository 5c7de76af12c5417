"""Executor of shards on a Ray cluster: one actor per shard, on any node with free CPUs and GPUs.

Ray does not restart actors, because its retries are not exactly-once: a lost actor is replaced here, and its
assignment goes back to the scheduler.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from finrl_pod.errors import ConfigError, RunError, SetupError
from finrl_pod.tournament.assignment import Assignment
from finrl_pod.tournament.assignment_codec import decode_result, encode_assignment
from finrl_pod.tournament.executor import Event, Finished, Lost, NodeJoined, NodeLost, ReportSamples, last_line
from finrl_pod.tournament.executors import shard as messages
from finrl_pod.tournament.executors.ray_connection import (
    START_SECONDS,
    WAY_OUT,
    connect,
    control_address,
    disconnect,
    listens,
)
from finrl_pod.tournament.executors.shard import MakeTrainer

WAIT_SECONDS = 1.0  # between two looks at progress and nodes
CONTROL_SECONDS = 30.0  # without the control process, until it comes back; Ray itself ends the program after 60
MAX_FAILED_STARTS = 3


class RayShard:
    """The actor: trains an assignment in one thread and answers about its progress in another."""

    def __init__(self, make_trainer: MakeTrainer, number: int) -> None:
        self._shard = messages.Shard(make_trainer, number)
        self._samples = 0

    def start(self) -> tuple[str, int, bytes]:
        """Make the trainer; returns the node id, the process id of its raylet, and a message."""
        node = importlib.import_module("ray").get_runtime_context().get_node_id()
        return node, os.getppid(), self._shard.start()

    def train(self, data: bytes) -> bytes:
        """Train an encoded assignment; returns a message as shards in processes send it."""
        return self._shard.train(data, self._count)

    def samples(self) -> int:
        return self._samples

    def _count(self, samples: int) -> None:
        self._samples += samples


@dataclass
class _Shard:
    number: int
    actor: Any
    starting: Any = None  # reference of `start`, until it has answered
    node: str = ""
    key: tuple[int, int] | None = None
    training: Any = None
    polling: Any = None
    samples: int = 0
    last_progress_time: float = field(default_factory=time.monotonic)  # of the last progress

    @property
    def ready(self) -> bool:
        return self.starting is None


class RayExecutor:
    """Shards as Ray actors. Lost and hanging actors are replaced, on other nodes if necessary."""

    def __init__(
        self,
        make_trainer: MakeTrainer,
        *,
        shards: int | None = None,
        address: str | None = None,
        cpus: float = 1.0,
        gpus: float = 0.0,
        timeout: float = 600.0,
    ) -> None:
        """shards: None for as many as fit into the cluster, also when nodes join and leave.

        address: HOST:PORT of a running cluster, None to start one here. cpus, gpus: resources of each shard. timeout:
        seconds without an iteration after which a shard counts as hanging. Raises SetupError, and ConfigError for more
        CPUs or GPUs than the cluster has.
        """
        self._start_time = time.monotonic()
        self._ray = ray = connect(address)
        self._cpus = cpus
        self._gpus = gpus
        self._timeout = timeout
        self._fixed_count = shards
        try:
            self._check_resources(address)
            self.shards = self._room() if shards is None else shards
            self._setup = ray.put(make_trainer)
            self._actor = ray.remote(
                num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0, max_concurrency=2
            )(RayShard)
            self._failed_starts = 0
            self._nodes: dict[str, tuple[str, int]] = {}  # id -> host and port of nodes with shards
            self._events: list[Event] = []
            self._shards = [self._start(number) for number in range(self.shards)]
            self._last_check_time = time.monotonic()
            self._control = control_address(ray)
            self._last_control_time = self._last_check_time  # when it was last there
        except BaseException:
            disconnect(ray)
            raise

    @property
    def free(self) -> int:
        return sum(shard.ready and shard.key is None for shard in self._shards)

    def submit(self, assignment: Assignment) -> str:
        shard = next(shard for shard in self._shards if shard.ready and shard.key is None)
        shard.key = assignment.key
        shard.last_progress_time = time.monotonic()
        shard.training = shard.actor.train.remote(encode_assignment(assignment))
        return shard.node

    def wait(self, report: ReportSamples) -> Sequence[Event]:
        """Wait for answers of the shards for at most a second; replace those that died or hang."""
        if not self._events:
            refs = [ref for shard in self._shards for ref in (shard.starting, shard.training, shard.polling) if ref]
            ready, _ = self._ray.wait(refs, num_returns=1, timeout=WAIT_SECONDS)
            if ready:
                ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
            answers = set(ready)
            for shard in list(self._shards):
                self._collect(shard, answers, report)
            if time.monotonic() - self._last_check_time > WAIT_SECONDS:
                self._look()
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """End all shards, and the cluster if it was started here."""
        if listens(*self._control.rsplit(":", 1)):
            for shard in self._shards:
                self._kill(shard)
        disconnect(self._ray)

    # ------------------------------------------------------------------ answers

    def _collect(self, shard: _Shard, answers: set[Any], report: ReportSamples) -> None:
        errors = self._ray.exceptions
        try:
            if shard.starting in answers:
                node, raylet, message = self._ray.get(shard.starting)
                if self._is_accepted(shard, message):
                    self._on_start(shard, node, raylet)
            elif shard.training in answers:
                message = self._ray.get(shard.training)
                if self._is_accepted(shard, message):
                    result = decode_result(message[1:])
                    shard.samples += max(result.samples - shard.samples, 0)
                    shard.key = shard.training = None
                    self._events.append(Finished(result, shard.node))
            elif shard.polling in answers:
                total = self._ray.get(shard.polling)
                shard.polling = None
                if shard.key is not None and total > shard.samples:
                    report(shard.key[0], total - shard.samples)
                    shard.samples = total
                    shard.last_progress_time = time.monotonic()
        except (errors.RayActorError, errors.RayTaskError, errors.ObjectLostError) as error:
            self._replace(shard, f"{type(error).__name__}: {last_line(str(error))}")

    def _is_accepted(self, shard: _Shard, message: bytes) -> bool:
        """False for a failure: the shard is replaced. Raises RunError if any other shard would fail too."""
        kind, content = message[:1], message[1:]
        if kind == messages.REJECTED:
            raise RunError(content.decode())
        if kind == messages.FAILED:
            self._replace(shard, content.decode())
        return kind != messages.FAILED

    def _on_start(self, shard: _Shard, node: str, raylet: int) -> None:
        self._failed_starts = 0
        shard.starting = None
        shard.node = node
        if node not in self._nodes:
            entry = next(entry for entry in self._ray.nodes() if entry["NodeID"] == node)
            self._nodes[node] = (entry["NodeManagerAddress"], int(entry["NodeManagerPort"]))
            self._events.append(NodeJoined(node, raylet))

    # ------------------------------------------------------------------ shards and nodes

    def _look(self) -> None:
        """Ask busy shards for their progress, replace those that hang, follow nodes that joined or left."""
        self._last_check_time = now = time.monotonic()
        if not listens(*self._control.rsplit(":", 1)):
            if now - self._last_control_time > CONTROL_SECONDS:
                raise SetupError(
                    f"the control process (GCS) of the Ray cluster at {self._control} is gone; start the cluster again "
                    "and continue with --resume"
                )
            return
        self._last_control_time = now
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        for node in [node for node in self._nodes if node not in alive]:
            self._lose(node)
        for shard in list(self._shards):
            if shard.key is not None and now - shard.last_progress_time > self._timeout:
                self._replace(shard, f"it did nothing for {self._timeout:g} s")
            elif shard.key is not None and shard.polling is None:
                shard.polling = shard.actor.samples.remote()
        if not any(shard.ready for shard in self._shards) and now - self._start_time > START_SECONDS:
            raise SetupError(
                f"no shard has started within {START_SECONDS:g} s: the cluster is full or has no node; add nodes, or "
                f"{WAY_OUT}"
            )
        if self._fixed_count is None:
            self.shards = self._room()
            self._shards += [self._start(number) for number in range(len(self._shards), self.shards)]

    def _lose(self, node: str) -> None:
        """A node is gone, and with it its shards."""
        del self._nodes[node]
        self._events.append(NodeLost(node))
        for shard in [shard for shard in self._shards if shard.node == node]:
            self._replace(shard, "its node was lost")

    def _replace(self, shard: _Shard, reason: str) -> None:
        """Replace a shard by a new actor. Raises SetupError if several in a row do not start."""
        if shard not in self._shards:
            return
        self._kill(shard)
        if shard.node in self._nodes and not listens(*self._nodes[shard.node]):
            self._lose(shard.node)  # this shard included
            return
        if shard.key is not None:
            self._events.append(Lost(shard.key, reason))
        elif not shard.ready:
            self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS:
            raise SetupError(f"no shard starts: {last_line(reason)}; use --engine local to see the error")
        if not any(neighbour.ready for neighbour in self._shards if neighbour is not shard):
            self._start_time = time.monotonic()
        self._shards[self._shards.index(shard)] = self._start(shard.number)

    def _start(self, number: int) -> _Shard:
        actor = self._actor.remote(self._setup, number)
        return _Shard(number, actor, actor.start.remote())

    def _kill(self, shard: _Shard) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(shard.actor, no_restart=True)

    # ------------------------------------------------------------------ resources

    def _check_resources(self, address: str | None) -> None:
        """Raises ConfigError if no node can hold a shard."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        cluster = f"the cluster at {address}" if address else "this machine"
        for name, amount in (("GPU", self._gpus), ("CPU", self._cpus)):
            largest = max((node.get(name, 0.0) for node in nodes), default=0.0)
            if amount > largest:
                raise ConfigError(
                    f"--shard-{name.lower()}s is {amount:g}, and no node of {cluster} has more than {largest:g} "
                    f"{name}s; lower it"
                )

    def _room(self) -> int:
        """Number of shards that fit into the nodes that are alive, at least one."""
        count = 0
        for node in self._ray.nodes():
            if node["Alive"]:
                fits = [
                    int(node["Resources"].get(name, 0.0) / amount + 1e-9)
                    for name, amount in (("CPU", self._cpus), ("GPU", self._gpus))
                    if amount
                ]
                count += min(fits, default=1)
        return max(count, 1)
