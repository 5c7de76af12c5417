"""Learning curves of a generation and the scores of its agents: the contents of `metrics/0003.json`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from finrl_pod.errors import RunError
from finrl_pod.files import read_json, to_plain, write_json
from finrl_pod.tournament.leaderboard import score_from_dict
from finrl_pod.types import Score

CurveRow = Mapping[str, Sequence[float | None]]  # one point: the samples [P] and each metric [P] by name


@dataclass(frozen=True)
class LearningCurves:
    """Learning curves of P pods. rows: points, None for pods of other groups. agents: scores of the pods."""

    slots: tuple[int, ...]
    rows: tuple[CurveRow, ...]
    agents: tuple[Score, ...] = ()

    @classmethod
    def joined(cls, groups: Iterable[LearningCurves]) -> LearningCurves:
        """Curves of several groups side by side."""
        groups = tuple(groups)
        slots = tuple(slot for group in groups for slot in group.slots)
        rows: list[CurveRow] = []
        offset = 0
        for group in groups:
            leading = [None] * offset
            offset += len(group.slots)
            trailing = [None] * (len(slots) - offset)
            rows += [{name: [*leading, *column, *trailing] for name, column in row.items()} for row in group.rows]
        return cls(slots, tuple(rows), tuple(agent for group in groups for agent in group.agents))

    def without(self, slots: Collection[int]) -> LearningCurves:
        """The curves of the other slots."""
        columns = [p for p, slot in enumerate(self.slots) if slot not in slots]
        rows = [{name: [column[p] for p in columns] for name, column in row.items()} for row in self.rows]
        return LearningCurves(
            tuple(self.slots[p] for p in columns),
            tuple(row for row in rows if any(samples is not None for samples in row["samples"])),
            tuple(agent for agent in self.agents if agent.slot not in slots),
        )

    def write(self, file: Path) -> None:
        """Write a JSON file, NaN as null."""
        agents = [asdict(agent) for agent in self.agents]
        write_json(file, to_plain({"slots": self.slots, "rows": self.rows, "agents": agents}))


def read_curves(file: Path) -> LearningCurves:
    """Read the curves of a generation. Raises RunError if they are damaged."""
    values = read_json(file)
    if missing := [name for name in ("slots", "rows", "agents") if not isinstance(values.get(name), list)]:
        raise RunError(f"{file} is damaged: {missing[0]} is missing; restore it or start a new run")
    return LearningCurves(tuple(values["slots"]), tuple(values["rows"]), tuple(map(score_from_dict, values["agents"])))
