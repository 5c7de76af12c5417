"""State of a tournament between results: the contents of `state.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from finrl_pod.errors import RunError
from finrl_pod.files import read_json, to_plain
from finrl_pod.settings.run import MAX_ROOT_SHARE, TournamentConfig
from finrl_pod.tournament.assignment import AssignmentResult, Group
from finrl_pod.tournament.leaderboard import Leaderboard, root_of, score_from_dict
from finrl_pod.tournament.next_generation import SlotInit
from finrl_pod.tournament.ranking import PastScore, past_from_dict, past_score
from finrl_pod.types import Score

FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "generation": int,
    "leaderboard": list,
    "current": list,
    "parents": dict,
    "samples": int,
    "seconds": (int, float),
    "scoring_seconds": (int, float),
    "history": dict,
}


@dataclass(frozen=True)
class Pending:
    """An assignment that has no result yet: its group, its number and how its pods start."""

    group: Group
    number: int
    slot_inits: tuple[SlotInit, ...]

    @property
    def key(self) -> tuple[int, int]:
        return self.group.number, self.number


@dataclass(frozen=True)
class RunState:
    """Everything that the next assignments depend on.

    generation: number of the newest assignments that have a result. current: last scores of the slots. parents: id ->
    id of the parent, for every agent. samples: environment steps of all pods. seconds: time of training and scoring;
    scoring_seconds: the part of them that scoring took. history: scores of all agents by id.
    groups: groups at the start of the run. pending: assignments of the asynchronous scheduler, next one first.
    """

    generation: int
    leaderboard: Leaderboard
    current: tuple[Score, ...]
    parents: Mapping[str, str | None]
    samples: int
    seconds: float
    scoring_seconds: float
    history: Mapping[str, PastScore]
    groups: tuple[Group, ...]
    pending: tuple[Pending, ...] = ()

    def with_results(self, results: Sequence[AssignmentResult], seconds: float) -> tuple[RunState, list[Score]]:
        """State after these results, and their scores with roots. seconds: time of the run so far."""
        rootless_scores = [score for result in results for score in result.scores]
        parents = {**self.parents, **{score.id: score.parent for score in rootless_scores}}
        scores = [replace(score, root=root_of(score.id, parents)) for score in rootless_scores]
        slots = {score.slot for score in scores}
        current = [*(score for score in self.current if score.slot not in slots), *scores]
        return replace(
            self,
            generation=max(self.generation, *(result.number for result in results)),
            leaderboard=self.leaderboard.insert(scores),
            current=tuple(sorted(current, key=lambda score: score.slot)),
            parents=parents,
            samples=self.samples + sum(result.samples for result in results),
            seconds=seconds,
            scoring_seconds=self.scoring_seconds + scoring_share(results) * (seconds - self.seconds),
            history={**self.history, **{score.id: past_score(score) for score in scores}},
        ), scores

    @property
    def agents_needed(self) -> set[str]:
        """Ids of the agents whose snapshots are kept."""
        starts = {slot_init.parent for pending in self.pending for slot_init in pending.slot_inits} - {None}
        return {score.id for score in (*self.leaderboard.scores, *self.current)} | {str(agent) for agent in starts}

    def to_dict(self) -> dict[str, Any]:
        """JSON values. Groups and pending assignments are left out if the config alone determines them."""
        values: dict[str, Any] = to_plain(asdict(replace(self, groups=(), pending=())))
        del values["groups"], values["pending"]
        values["leaderboard"] = to_plain([asdict(score) for score in self.leaderboard.scores])
        if any(group.number != group.cohort for group in self.groups) or self.pending:
            values["groups"] = [asdict(group) for group in self.groups]
        if self.pending:
            pending = [{**asdict(waiting), "group": waiting.group.number} for waiting in self.pending]
            values["pending"] = to_plain(pending)
        return values


def scoring_share(results: Sequence[AssignmentResult]) -> float:
    """Share of the time on the shards of some results that scoring took."""
    return sum(result.scoring_seconds for result in results) / max(sum(result.seconds for result in results), 1e-9)


def initial_state(config: TournamentConfig, groups: Iterable[Group]) -> RunState:
    """State before the first result."""
    board = Leaderboard(config.leaderboard, max_root_share=MAX_ROOT_SHARE)
    return RunState(-1, board, (), {}, 0, 0.0, 0.0, {}, tuple(groups))


def read_state(file: Path, config: TournamentConfig, groups: Sequence[Group] = ()) -> RunState:
    """State in a file. groups: groups of a run that saved none. Raises RunError if the file is damaged."""
    values = read_json(file)
    for name, kind in FIELDS.items():
        if not isinstance(values.get(name), kind):
            raise RunError(f"{file} is damaged at {name}; restore it or start a new run")
    scores = tuple(map(score_from_dict, values["leaderboard"]))
    current = tuple(map(score_from_dict, values["current"]))
    history = {name: past_from_dict(row) for name, row in values["history"].items()}
    groups = tuple(groups)
    try:
        if "groups" in values:
            groups = tuple(Group(row["number"], row["cohort"], tuple(row["slots"])) for row in values["groups"])
        pending = tuple(
            Pending(groups[row["group"]], row["number"], tuple(SlotInit(**init) for init in row["slot_inits"]))
            for row in values.get("pending", ())
        )
    except (TypeError, KeyError, IndexError):
        raise RunError(f"the groups in {file} are invalid; restore it or start a new run") from None
    return RunState(
        int(values["generation"]),
        Leaderboard(config.leaderboard, scores, MAX_ROOT_SHARE),
        current,
        values["parents"],
        int(values["samples"]),
        float(values["seconds"]),
        float(values["scoring_seconds"]),
        history,
        groups,
        pending,
    )
