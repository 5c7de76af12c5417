"""Executor of shards on a Ray cluster: one actor each, wherever the cluster has room for its CPUs and GPUs.

Actors are not restarted by Ray, whose retries are not exactly-once: a lost one is replaced here, and its assignment
goes back to the scheduler. Only bytes of `wire` cross, besides the function that makes a shard's trainer.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from finrl_pod.errors import ConfigError, FinrlPodError, RunError, SetupError
from finrl_pod.tournament.assignment import Assignment
from finrl_pod.tournament.executor import (
    Event,
    Finished,
    Lost,
    NodeJoined,
    NodeLost,
    ReportSamples,
    last_line,
)
from finrl_pod.tournament.executors import shard as messages
from finrl_pod.tournament.executors.ray_cluster import connect, leave
from finrl_pod.tournament.executors.shard import MakeTrainer
from finrl_pod.tournament.executors.wire import decode_assignment, decode_result, encode_assignment, encode_result
from finrl_pod.user_files import own_failures

WAIT_SECONDS = 1.0  # between two looks at progress and nodes
START_SECONDS = 300.0  # until the first shard is ready
PROBE_SECONDS = 1.0  # for a connection to a node that may be dead
CONTROL_SECONDS = 30.0  # without Ray's control process, which may come back; Ray itself ends the program after 60
MAX_FAILED_STARTS = 3


class RayShard:
    """The actor: trains an assignment in one thread and answers about its progress in another."""

    def __init__(self, make_trainer: MakeTrainer, number: int) -> None:
        self._make, self._number = make_trainer, number
        self._samples = 0

    def start(self) -> tuple[str, int, bytes]:
        """Make the trainer; returns the node's id, the process id of its raylet, and a message as in `train`."""
        node = importlib.import_module("ray").get_runtime_context().get_node_id()
        message = messages.READY
        try:
            with own_failures():
                self._trainer = self._make(self._number)
        except FinrlPodError as error:
            message = messages.REJECTED + str(error).encode()
        except Exception:  # noqa: BLE001  exceptions do not cross
            message = messages.FAILED + traceback.format_exc().encode()
        return node, os.getppid(), message

    def train(self, data: bytes) -> bytes:
        """Train an encoded assignment; returns a message as shards in processes send it."""
        try:
            with own_failures():
                result = self._trainer.run(decode_assignment(data), self._count)
            return messages.RESULT + encode_result(result)
        except FinrlPodError as error:
            return messages.REJECTED + str(error).encode()
        except Exception:  # noqa: BLE001  exceptions do not cross
            return messages.FAILED + traceback.format_exc().encode()

    def samples(self) -> int:
        """Environment steps so far."""
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
    heard: float = field(default_factory=time.monotonic)  # of the last progress

    @property
    def ready(self) -> bool:
        return self.starting is None


class RayExecutor:
    """Shards as Ray actors. Those of lost nodes and those that hang are replaced, on other nodes if need be."""

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
        """shards: None for as many as the cluster has room for, which follows nodes that join and leave.

        address: of a running cluster, None to start one here. cpus, gpus: that each shard takes. timeout: seconds
        without an iteration after which a shard counts as hanging. Raises SetupError, and ConfigError for more CPUs or
        GPUs than the cluster has.
        """
        self._ray = ray = connect(address)
        self._cpus, self._gpus, self._timeout, self._fixed = cpus, gpus, timeout, shards
        try:
            self._check_resources(address)
            self.shards = shards or self._room()
            self._setup = ray.put(make_trainer)
            self._actor = ray.remote(
                num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0, max_concurrency=2
            )(RayShard)
            self._failed_starts, self._began = 0, time.monotonic()
            self._nodes: dict[str, Mapping[str, Any]] = {}  # with shards, by id
            self._events: list[Event] = []
            self._shards = [self._start(number) for number in range(self.shards)]
            self._looked = time.monotonic()
            self._control = str(ray.get_runtime_context().gcs_address)  # HOST:PORT of the cluster's control process
            self._controlled = self._looked  # when it was last there
        except BaseException:
            ray.shutdown()
            raise

    @property
    def free(self) -> int:
        """Number of shards that are ready and have no assignment."""
        return sum(shard.ready and shard.key is None for shard in self._shards)

    def submit(self, assignment: Assignment) -> str:
        """Send an assignment to a free shard."""
        shard = next(shard for shard in self._shards if shard.ready and shard.key is None)
        shard.key, shard.heard = assignment.key, time.monotonic()
        shard.training = shard.actor.train.remote(encode_assignment(assignment))
        return shard.node

    def wait(self, report: ReportSamples) -> Sequence[Event]:
        """Wait for answers of the shards for at most a second; replace those that died or hang."""
        if not self._events:
            refs = [ref for shard in self._shards for ref in (shard.starting, shard.training, shard.polling) if ref]
            ready, _ = self._ray.wait(refs, num_returns=1, timeout=WAIT_SECONDS)
            if ready:
                ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
            answered = set(ready)
            for shard in list(self._shards):
                self._collect(shard, answered, report)
            if time.monotonic() - self._looked > WAIT_SECONDS:
                self._look()
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """End all shards, and the cluster if it was started here."""
        if not _listens(*self._control.rsplit(":", 1)):
            leave()
            return
        for shard in self._shards:
            self._kill(shard)
        self._ray.shutdown()

    # ------------------------------------------------------------------ answers

    def _collect(self, shard: _Shard, answered: set[Any], report: ReportSamples) -> None:
        """Handle what a shard has answered."""
        errors = self._ray.exceptions
        try:
            if shard.starting in answered:
                self._started(shard, *self._ray.get(shard.starting))
            elif shard.training in answered:
                self._trained(shard, self._ray.get(shard.training))
            elif shard.polling in answered:
                total, shard.polling = self._ray.get(shard.polling), None
                if shard.key is not None and total > shard.samples:
                    report(shard.key[0], total - shard.samples)
                    shard.samples, shard.heard = total, time.monotonic()
        except (errors.RayActorError, errors.RayTaskError, errors.ObjectLostError) as error:
            self._replace(shard, f"{type(error).__name__}: {last_line(str(error))}")

    def _started(self, shard: _Shard, node: str, raylet: int, message: bytes) -> None:
        kind, content = message[:1], message[1:]
        if kind == messages.REJECTED:
            raise RunError(content.decode())
        if kind == messages.FAILED:
            self._replace(shard, content.decode())
            return
        self._failed_starts = 0
        shard.starting, shard.node = None, node
        if node not in self._nodes:
            self._nodes[node] = next(found for found in self._ray.nodes() if found["NodeID"] == node)
            self._events.append(NodeJoined(node, raylet))

    def _trained(self, shard: _Shard, message: bytes) -> None:
        kind, content = message[:1], message[1:]
        if kind == messages.REJECTED:
            raise RunError(content.decode())
        if kind == messages.FAILED:
            self._replace(shard, content.decode())
            return
        result = decode_result(content)
        shard.samples += max(result.samples - shard.samples, 0)
        shard.key = shard.training = None
        self._events.append(Finished(result, shard.node))

    # ------------------------------------------------------------------ shards and nodes

    def _look(self) -> None:
        """Ask busy shards for their progress, replace those that hang, follow nodes that joined or left."""
        self._looked = now = time.monotonic()
        if not _listens(*self._control.rsplit(":", 1)):
            if now - self._controlled > CONTROL_SECONDS:
                raise SetupError(
                    f"the control process (GCS) of the Ray cluster at {self._control} is gone; start the cluster again "
                    "and continue with --resume"
                )
            return
        self._controlled = now
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        for node in [node for node in self._nodes if node not in alive]:
            self._lose(node)
        for shard in list(self._shards):
            if shard.key is not None and now - shard.heard > self._timeout:
                self._replace(shard, f"it did nothing for {self._timeout:g} s")
            elif shard.key is not None and shard.polling is None:
                shard.polling = shard.actor.samples.remote()
        if not any(shard.ready for shard in self._shards) and now - self._began > START_SECONDS:
            raise SetupError(f"no shard has started within {START_SECONDS:g} s: the cluster is full or has no node")
        if self._fixed is None:
            self.shards = self._room()
            missing = range(len(self._shards), self.shards)
            self._shards += [self._start(number) for number in missing]

    def _lose(self, node: str) -> None:
        """A node is gone, and with it its shards."""
        del self._nodes[node]
        self._events.append(NodeLost(node))
        for shard in [shard for shard in self._shards if shard.node == node]:
            self._replace(shard, "its node was lost")

    def _node_listens(self, node: str) -> bool:
        found = self._nodes[node]
        return _listens(found["NodeManagerAddress"], found["NodeManagerPort"])

    def _replace(self, shard: _Shard, reason: str) -> None:
        """Start a new actor in place of a shard. Raises SetupError where none starts any more."""
        if shard not in self._shards:
            return
        self._kill(shard)
        if shard.node in self._nodes and not self._node_listens(shard.node):
            self._lose(shard.node)  # this shard included
            return
        if shard.key is not None:
            self._events.append(Lost(shard.key, reason))
        elif not shard.ready:
            self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS:
            raise SetupError(f"no shard starts: {last_line(reason)}; use --engine local to see the error")
        if not any(other.ready for other in self._shards if other is not shard):
            self._began = time.monotonic()
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
        where = f"the cluster at {address}" if address else "this machine"
        for name, needed in (("GPU", self._gpus), ("CPU", self._cpus)):
            largest = max((node.get(name, 0.0) for node in nodes), default=0.0)
            if needed > largest:
                raise ConfigError(
                    f"--shard-{name.lower()}s is {needed:g}, and no node of {where} has more than {largest:g} {name}s; "
                    "lower it"
                )

    def _room(self) -> int:
        """Number of shards that fit into the nodes that are alive, at least one."""
        count = 0
        for node in self._ray.nodes():
            if node["Alive"]:
                fits = [
                    int(node["Resources"].get(name, 0.0) / needed + 1e-9)
                    for name, needed in (("CPU", self._cpus), ("GPU", self._gpus))
                    if needed
                ]
                count += min(fits, default=1)
        return max(count, 1)


def _listens(host: str, port: str | int) -> bool:
    """Whether a process accepts connections: much faster than the cluster's own health checks."""
    try:
        socket.create_connection((host, int(port)), PROBE_SECONDS).close()
    except OSError:
        return False
    return True
