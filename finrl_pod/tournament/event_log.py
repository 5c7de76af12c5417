"""What happened in a run and when: `events.jsonl`, one JSON object a line, from which a run can be repeated.

    {"event": "started", "time": 0.0, "config_sha256": ..., "groups": [[0, 2], [1, 3]], "shards": 2}
    {"event": "node_joined", "time": ..., "node": ..., "pid": ...}
    {"event": "assigned", "time": ..., "slot": 0, "assignment": 0}
    {"event": "result", "time": ..., "slot": 0, "assignment": 0, "node": ..., "score": ..., "samples": ...}
    {"event": "node_lost", "time": ..., "node": ...}
    {"event": "restarted", "time": ..., "slot": 2, "assignment": 1}   the shard was lost; another one trains it
    {"event": "resumed", "time": ..., "shards": 2}

time: seconds since the run was started, without pauses between its processes. samples: environment steps of the pod in
this assignment. score: null for a pod that diverged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finrl_pod.errors import RunError
from finrl_pod.files import write_text
from finrl_pod.tournament.assignment import AssignmentResult, Group
from finrl_pod.tournament.run_state import Pending


class EventLog:
    """Appends to a log. Every (slot, assignment) is assigned once, and has one result."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """Continue the log in `path`, or start one. clock: seconds, from any origin."""
        self._path, self._clock = path, clock
        earlier = read_events(path) if path.exists() else []
        self._events = earlier
        self._origin = clock() - (earlier[-1]["time"] if earlier else 0.0)
        self._assigned = {(e["slot"], e["assignment"]) for e in earlier if e["event"] == "assigned"}

    def start(self, config_sha256: str, groups: Sequence[Group], shards: int, unfinished: Sequence[Pending]) -> None:
        """Begin or resume a run. unfinished: assignments whose results the run has not saved; they are removed here."""
        if not self._events:
            slots = [list(group.slots) for group in groups]
            self._write("started", config_sha256=config_sha256, groups=slots, shards=shards)
            return
        repeated = {(slot, pending.number) for pending in unfinished for slot in pending.group.slots}
        kept = [e for e in self._events if e["event"] != "result" or (e["slot"], e["assignment"]) not in repeated]
        write_text(self._path, "".join(json.dumps(event) + "\n" for event in kept))
        self._write("resumed", shards=shards)

    def assigned(self, pending: Pending) -> None:
        """A shard trains an assignment: for the first time, or again after the first one was lost."""
        for slot in pending.group.slots:
            key = (slot, pending.number)
            self._write("restarted" if key in self._assigned else "assigned", slot=slot, assignment=pending.number)
            self._assigned.add(key)

    def result(self, result: AssignmentResult, node: str) -> None:
        """An assignment has a result, accepted by the scheduler."""
        each = result.samples // len(result.scores)
        for score in result.scores:
            value = score.score if math.isfinite(score.score) else None
            self._write("result", slot=score.slot, assignment=result.number, node=node, score=value, samples=each)

    def node_joined(self, node: str, pid: int) -> None:
        """A machine has its first shard."""
        self._write("node_joined", node=node, pid=pid)

    def node_lost(self, node: str) -> None:
        """A machine is gone."""
        self._write("node_lost", node=node)

    def _write(self, event: str, **values: Any) -> None:
        line = json.dumps({"event": event, "time": round(self._clock() - self._origin, 6), **values}) + "\n"
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise RunError(f"cannot write {self._path}: {error.strerror}; free space or name another --out") from None


@dataclass(frozen=True)
class LoggedResult:
    """One assignment's result in a log. samples: environment steps of each pod."""

    slots: tuple[int, ...]
    number: int
    samples: int


@dataclass(frozen=True)
class LoggedRun:
    """What is needed to repeat a run: its config's hash, its groups and the order in which results came."""

    config_sha256: str
    groups: tuple[tuple[int, ...], ...]
    results: tuple[LoggedResult, ...]


def read_run(path: Path) -> LoggedRun:
    """Read the log of a run. Raises RunError if it is missing, damaged, or holds no start."""
    events = read_events(path)
    try:
        first = next(event for event in events if event["event"] == "started")
        groups = tuple(tuple(int(slot) for slot in slots) for slots in first["groups"])
        of_slot = {slot: slots for slots in groups for slot in slots}
        found: dict[tuple[tuple[int, ...], int], LoggedResult] = {}
        for event in events:
            if event["event"] == "result":
                slots, number = of_slot[event["slot"]], int(event["assignment"])
                found.setdefault((slots, number), LoggedResult(slots, number, int(event["samples"])))
        return LoggedRun(str(first["config_sha256"]), groups, tuple(found.values()))
    except (StopIteration, KeyError, TypeError, ValueError):
        raise RunError(f"{path} is not the event log of a run; name its events.jsonl") from None


def read_events(path: Path) -> list[Mapping[str, Any]]:
    """All events of a log. A last line that was cut off is ignored. Raises RunError if it cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        raise RunError(f"there is no event log {path}; name the events.jsonl of a run") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"cannot read the event log {path}: {error}") from None
    events: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
            if not isinstance(event, dict) or "event" not in event or "time" not in event:
                raise ValueError
        except ValueError:
            if number == len(lines) and not line.endswith("\n"):
                break
            raise RunError(f"line {number} of {path} is not an event of a run; restore the file") from None
        events.append(event)
    return events
