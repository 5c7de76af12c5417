"""Events of a run with their times: `events.jsonl`, one JSON object per line. A run can be repeated from it.

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
        self._path = path
        self._clock = clock
        self._events = read_events(path) if path.exists() else []
        self._origin = clock() - (self._events[-1]["time"] if self._events else 0.0)
        self._assignments = {(e["slot"], e["assignment"]) for e in self._events if e["event"] == "assigned"}

    def start(
        self, config_sha256: str, groups: Sequence[Group], shards: int, pending_assignments: Sequence[Pending]
    ) -> None:
        """Begin or resume a run. pending_assignments: they are trained again; their results are removed here."""
        if not self._events:
            slots = [list(group.slots) for group in groups]
            self._write("started", config_sha256=config_sha256, groups=slots, shards=shards)
            return
        repeats = {(slot, pending.number) for pending in pending_assignments for slot in pending.group.slots}
        events = [e for e in self._events if e["event"] != "result" or (e["slot"], e["assignment"]) not in repeats]
        write_text(self._path, "".join(json.dumps(event) + "\n" for event in events))
        self._write("resumed", shards=shards)

    @property
    def results(self) -> tuple[tuple[int, int], ...]:
        """Slot and number of every result, in the order of their arrival."""
        return tuple((e["slot"], e["assignment"]) for e in self._events if e["event"] == "result")

    def assignment(self, pending: Pending) -> None:
        """Log that a shard trains an assignment, for the first time or after a loss."""
        for slot in pending.group.slots:
            key = (slot, pending.number)
            self._write("restarted" if key in self._assignments else "assigned", slot=slot, assignment=pending.number)
            self._assignments.add(key)

    def result(self, result: AssignmentResult, node: str) -> None:
        """Log a result that is saved. Its pods are logged at once: a killed process logs all of them or none."""
        samples = result.samples // len(result.scores)
        lines = []
        for score in result.scores:
            value = score.score if math.isfinite(score.score) else None
            facts = {"slot": score.slot, "assignment": result.number, "node": node, "score": value, "samples": samples}
            lines.append(self._line("result", **facts))
        self._append("".join(lines))

    def node_joined(self, node: str, pid: int) -> None:
        """Log the first shard of a machine."""
        self._write("node_joined", node=node, pid=pid)

    def node_lost(self, node: str) -> None:
        """Log the loss of a machine."""
        self._write("node_lost", node=node)

    def _write(self, event: str, **values: Any) -> None:
        self._append(self._line(event, **values))

    def _line(self, event: str, **values: Any) -> str:
        return json.dumps({"event": event, "time": round(self._clock() - self._origin, 6), **values}) + "\n"

    def _append(self, text: str) -> None:
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise RunError(f"cannot write {self._path}: {error.strerror}; free space or name another --out") from None


@dataclass(frozen=True)
class LoggedResult:
    """The result of one assignment in a log. samples: environment steps of each pod."""

    slots: tuple[int, ...]
    number: int
    samples: int


@dataclass(frozen=True)
class LoggedRun:
    """Data to repeat a run: its config hash, its groups and the order of the results."""

    config_sha256: str
    groups: tuple[tuple[int, ...], ...]
    results: tuple[LoggedResult, ...]


def read_run(path: Path) -> LoggedRun:
    """Read the log of a run. Raises RunError if it is missing, damaged, or has no start."""
    events = read_events(path)
    try:
        first = next(event for event in events if event["event"] == "started")
        groups = tuple(tuple(int(slot) for slot in slots) for slots in first["groups"])
        of_slot = {slot: slots for slots in groups for slot in slots}
        results: dict[tuple[tuple[int, ...], int], LoggedResult] = {}
        for event in events:
            if event["event"] == "result":
                slots = of_slot[event["slot"]]
                number = int(event["assignment"])
                results.setdefault((slots, number), LoggedResult(slots, number, int(event["samples"])))
        return LoggedRun(str(first["config_sha256"]), groups, tuple(results.values()))
    except (StopIteration, KeyError, TypeError, ValueError):
        raise RunError(f"{path} is not the event log of a run; name its events.jsonl") from None


def read_events(path: Path) -> list[Mapping[str, Any]]:
    """All events of a log. An incomplete last line is ignored. Raises RunError if it cannot be read."""
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
