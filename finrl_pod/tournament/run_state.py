"""State of a tournament between results: what `state.json` holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from finrl_pod.errors import RunError
from finrl_pod.files import to_plain
from finrl_pod.settings.run import TournamentConfig
from finrl_pod.tournament.assignment import AssignmentResult, Group
from finrl_pod.tournament.leaderboard import Leaderboard, root_of, score_from_dict
from finrl_pod.tournament.next_generation import SlotInit
from finrl_pod.tournament.ranking import PastScore, past_from_dict, past_score
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import Score


@dataclass(frozen=True)
class Pending:
    """An assignment that has no result yet: its group, its number and how its pods start."""

    group: Group
    number: int
    slot_inits: tuple[SlotInit, ...]

    @property
    def key(self) -> tuple[int, int]:
        """(group, number)."""
        return self.group.number, self.number


@dataclass(frozen=True)
class RunState:
    """Everything that the next assignments depend on.

    generation: number of the newest assignments that have a result. current: last scores of the slots. parents: id ->
    parent's id of every agent made. samples: environment steps of all pods. history: scores of all agents by id.
    groups: those that the run was started with. pending: assignments of the asynchronous scheduler, next one first.
    """

    generation: int
    leaderboard: Leaderboard
    current: tuple[Score, ...]
    parents: Mapping[str, str | None]
    samples: int
    train_seconds: float
    history: Mapping[str, PastScore]
    groups: tuple[Group, ...]
    pending: tuple[Pending, ...] = ()

    def with_results(self, results: Sequence[AssignmentResult], train_seconds: float) -> tuple[RunState, list[Score]]:
        """State after these results, and their scores with roots."""
        scored = [score for result in results for score in result.scores]
        parents = {**self.parents, **{score.id: score.parent for score in scored}}
        scores = [replace(score, root=root_of(score.id, parents)) for score in scored]
        slots = {score.slot for score in scores}
        current = [*(score for score in self.current if score.slot not in slots), *scores]
        return replace(
            self,
            generation=max(self.generation, *(result.number for result in results)),
            leaderboard=self.leaderboard.insert(scores),
            current=tuple(sorted(current, key=lambda score: score.slot)),
            parents=parents,
            samples=self.samples + sum(result.samples for result in results),
            train_seconds=train_seconds,
            history={**self.history, **{score.id: past_score(score) for score in scores}},
        ), scores

    @property
    def agents_needed(self) -> set[str]:
        """Ids of the agents whose snapshots are kept."""
        starts = {slot_init.parent for pending in self.pending for slot_init in pending.slot_inits} - {None}
        return {score.id for score in (*self.leaderboard.scores, *self.current)} | {str(agent) for agent in starts}

    def to_dict(self) -> dict[str, Any]:
        """JSON values. Groups and pending assignments are left out where the config alone determines them."""
        values: dict[str, Any] = {
            "generation": self.generation,
            "leaderboard": self.leaderboard.to_dict(),
            "current": [asdict(score) for score in self.current],
            "parents": dict(self.parents),
            "samples": self.samples,
            "train_seconds": self.train_seconds,
            "history": {name: asdict(past) for name, past in self.history.items()},
        }
        if any(group.number != group.cohort for group in self.groups) or self.pending:
            values["groups"] = [asdict(group) for group in self.groups]
        if self.pending:
            values["pending"] = [
                {
                    "group": pending.group.number,
                    "number": pending.number,
                    "slot_inits": [asdict(x) for x in pending.slot_inits],
                }
                for pending in self.pending
            ]
        plain: dict[str, Any] = to_plain(values)
        return plain


def initial_state(config: TournamentConfig, groups: Iterable[Group]) -> RunState:
    """State before the first result."""
    return RunState(-1, Leaderboard.from_state(None, config), (), {}, 0, 0.0, {}, tuple(groups))


def restored_state(run: RunDirectory, config: TournamentConfig, groups: tuple[Group, ...]) -> RunState | None:
    """State saved in a run, None before its first result. groups: those of a run that saved none.

    Raises RunError if the state is damaged.
    """
    plain = run.state()
    if plain is None:
        return None
    board = Leaderboard.from_state(plain, config)
    current = tuple(score_from_dict(row) for row in plain["current"])
    history = {name: past_from_dict(row) for name, row in plain["history"].items()}
    try:
        if "groups" in plain:
            groups = tuple(Group(x["number"], x["cohort"], tuple(x["slots"])) for x in plain["groups"])
        pending = tuple(
            Pending(groups[x["group"]], x["number"], tuple(SlotInit(**init) for init in x["slot_inits"]))
            for x in plain.get("pending", ())
        )
    except (TypeError, KeyError, IndexError):
        raise RunError(
            f"the groups in the state.json of {run.path} are invalid; restore it or start a new run"
        ) from None
    return RunState(
        int(plain["generation"]),
        board,
        current,
        plain["parents"],
        int(plain["samples"]),
        float(plain["train_seconds"]),
        history,
        groups,
        pending,
    )
