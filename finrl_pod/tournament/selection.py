"""Members of the champion: the agents of the leaderboard that form the ensemble, and their weights.

Three procedures start from the validation returns of the leaderboard entries. The return of an ensemble is computed as
the mean of the member returns, although their trades partly cancel.

best    the best `champion` entries by Sharpe ratio
all     every entry
greedy  the best `champion` entries, then with replacement the entry that raises the Sharpe ratio of the ensemble most,
        as long as one does (Caruana et al. 2004, "Ensemble selection from libraries of models", with the sorted
        initialisation of section 2.2 against overfitting to validation)

"cross_validated" compares them on inner folds of validation: each procedure selects on all but one block of consecutive
bars, its ensemble is scored on that block, and the procedure with the highest mean over the blocks selects on all of
validation. Where the leaderboard has two roots, so has an ensemble of two members or more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from finrl_pod.errors import InputError, RunError
from finrl_pod.evaluate.metrics import RISK_EPSILON
from finrl_pod.evaluate.overfitting import selected_z_scores, selection_p_value
from finrl_pod.evaluate.significance import mean_z_score
from finrl_pod.settings.run import RunConfig, TournamentConfig
from finrl_pod.tournament.leaderboard import Leaderboard, root_id
from finrl_pod.tournament.ranking import BASE, active_returns, mean_correlation
from finrl_pod.tournament.run_directory import START, RunDirectory
from finrl_pod.types import Floats

Counts = NDArray[np.int64]
Procedure = Literal["greedy", "best", "all"]
MAX_ADDITIONS = 64  # of the greedy procedure: weights are resolved to about a percent
MIN_GAIN = 1e-9  # a smaller gain in Sharpe ratio per bar is rounding error
INNER_FOLDS = 5  # of validation, on which "cross_validated" compares the other procedures
MIN_FOLD_BARS = 2
START_SIGNIFICANCE = 0.025  # level at which an ensemble must add to its start
COMPARED_PROCEDURES = 1.3  # all, best and greedy share most members: they count as so many independent selections


@dataclass(frozen=True)
class ChampionMembers:
    """Members of an ensemble, best first. ensemble_weights: weights of the members or of their votes, summing to one.

    roots: first ancestor of each member. procedure: selection procedure. mean_correlation: correlation of the active
    returns of members on validation, None for one member and without a base.
    """

    ids: tuple[str, ...]
    ensemble_weights: tuple[float, ...]
    rule: Literal["mean", "vote"] = "mean"
    roots: tuple[str, ...] = ()
    procedure: Procedure = "best"
    mean_correlation: float | None = None


@dataclass(frozen=True)
class StartComparison:
    """The ensemble of a run against the policy that its agents started from, on validation.

    active_return: mean return over the start per bar. p_value: one-sided, with the selection of the ensemble repeated
    without an edge; 1 if the returns do not differ. adds: whether it is at most `START_SIGNIFICANCE`.
    """

    active_return: float
    p_value: float

    @property
    def adds(self) -> bool:
        return self.p_value <= START_SIGNIFICANCE


def champion_of(run: RunDirectory, config: RunConfig) -> ChampionMembers:
    """Members of the champion of a run, from saved files: its ensemble, or the solved policy that agents started from.

    The ensemble takes the place of its start only if its mean return over it on validation is shown
    (`compared_with_start`). Raises InputError if the leaderboard is empty, RunError if validation returns are missing.
    """
    ensemble = ensemble_of(run, config)
    comparison = compared_with_start(run, config, ensemble)
    return ensemble if comparison is None or comparison.adds else ChampionMembers((START,), (1.0,), roots=(START,))


def compared_with_start(run: RunDirectory, config: RunConfig, ensemble: ChampionMembers) -> StartComparison | None:
    """Compare an ensemble with the policy that its agents started from; None for a run without one.

    The return of the ensemble is computed as the mean of the member returns. Trials are all agents of the run.
    """
    start = run.start_returns()
    if start is None:
        return None
    state = run.state()
    returns = run.validation_returns(range(state.generation + 1 if state else 0))
    trials = np.stack([agent_returns - start for name, agent_returns in returns.items() if name != BASE], 1)
    members = np.stack([returns[agent] for agent in ensemble.ids], 1)
    active = members @ np.asarray(ensemble.ensemble_weights) - start
    if active.std() <= RISK_EPSILON:
        return StartComparison(float(active.mean()), 1.0)
    is_greedy = ensemble.procedure == "greedy"
    null = selected_z_scores(
        trials,
        config.tournament.champion if is_greedy else len(ensemble.ids),
        "greedy" if is_greedy else "best",
        seed=config.seed,
    )
    procedures = COMPARED_PROCEDURES if config.tournament.selection == "cross_validated" else 1.0
    return StartComparison(float(active.mean()), selection_p_value(mean_z_score(active), null, procedures))


def ensemble_of(run: RunDirectory, config: RunConfig) -> ChampionMembers:
    """Members of the trained ensemble of a run, from saved files. Raises the errors of `champion_of`."""
    board = run.leaderboard()
    if not board.scores:
        raise InputError(f"the run in {run.path} has no agent on its leaderboard yet; let it finish one generation")
    return choose(board, config.tournament, run.validation_returns({score.generation for score in board.scores}))


def choose(board: Leaderboard, config: TournamentConfig, returns: Mapping[str, Floats]) -> ChampionMembers:
    """Champion members of a leaderboard, by `config.selection`.

    Shares come from the number of times that an entry was selected, multiplied by its validation Sharpe ratio if
    `config.ensemble` is "sharpe". returns: validation returns [T] by id, base returns under `BASE`. Raises RunError if
    returns of an agent are missing.
    """
    entries = board.scores
    if missing := [entry.id for entry in entries if entry.id not in returns]:
        raise RunError(f"the validation returns of agent {missing[0]} are missing; restore them or start a new run")
    roots = [root_id(entry) for entry in entries]
    table = np.stack([returns[entry.id] for entry in entries], 1)
    procedure = _procedure(table, roots, config)
    counts = _PROCEDURES[procedure](table, np.arange(len(entries)), roots, config.champion)
    members = [i for i in range(len(entries)) if counts[i]]
    raw = counts[members].astype(float)
    if config.ensemble == "sharpe":
        weights = raw * [max(entries[i].score, 0.0) for i in members]
        raw = weights if weights.sum() > 0 else raw
    ids = tuple(entries[i].id for i in members)
    return ChampionMembers(
        ids,
        tuple(float(x) for x in raw / raw.sum()),
        "vote" if config.ensemble == "vote" else "mean",
        tuple(roots[i] for i in members),
        procedure,
        None if BASE not in returns else mean_correlation(active_returns(ids, returns)),
    )


def _procedure(table: Floats, roots: Sequence[str], config: TournamentConfig) -> Procedure:
    """The procedure that selects; returns [T, M]."""
    if config.selection != "cross_validated":
        return config.selection
    folds = min(INNER_FOLDS, len(table) // MIN_FOLD_BARS)
    if folds < 2:
        return "best"
    blocks = np.array_split(np.arange(len(table)), folds)
    means: dict[Procedure, float] = {}
    for name, procedure in _PROCEDURES.items():
        fold_scores = []
        for block in blocks:
            selection_returns = np.delete(table, block, axis=0)
            order = np.argsort(-sharpe_ratios(selection_returns), kind="stable")
            counts = procedure(selection_returns, order, roots, config.champion)
            fold_scores.append(sharpe_ratios(table[block] @ (counts / counts.sum())[:, None])[0])
        means[name] = float(np.mean(fold_scores))
    return max(means, key=lambda name: means[name])  # the first and simplest of equal ones


def sharpe_ratios(returns: Floats) -> Floats:
    """Sharpe ratios per bar [M] of returns in excess of cash [T, M]; 0 where they do not vary."""
    spread = returns.std(0, ddof=1)
    return np.where(spread <= RISK_EPSILON, 0.0, returns.mean(0) / np.where(spread <= RISK_EPSILON, 1.0, spread))


def _best(table: Floats, order: Counts, roots: Sequence[str], size: int) -> Counts:
    """The first `size` entries of `order`; the last of them gives way to another root if all have the same."""
    members = [int(i) for i in order[:size]]
    candidates = [int(i) for i in order[size:]]
    if len(members) > 1 and len({roots[i] for i in members}) == 1:
        members[-1] = next((i for i in candidates if roots[i] != roots[members[0]]), members[-1])
    counts = np.zeros(table.shape[1], dtype=np.int64)
    counts[members] = 1
    return counts


def _greedy(table: Floats, order: Counts, roots: Sequence[str], size: int) -> Counts:
    """Caruana et al. 2004: the best `size` entries, and the additions that raise the Sharpe ratio most."""
    counts = _best(table, order, roots, size)
    total = table @ counts
    ratio = float(sharpe_ratios((table @ counts)[:, None])[0])
    for _ in range(MAX_ADDITIONS):
        ratios = sharpe_ratios(total[:, None] + table)  # the ratio does not depend on the scale
        best = int(ratios.argmax())
        if ratios[best] <= ratio + MIN_GAIN:
            break
        counts[best] += 1
        total = total + table[:, best]
        ratio = float(ratios[best])
    if len({roots[i] for i in range(len(roots)) if counts[i]}) == 1:  # a champion of one agent
        other_roots = [i for i in range(len(roots)) if roots[i] != roots[int(np.argmax(counts))]]
        if other_roots:
            counts[max(other_roots, key=lambda i: float(sharpe_ratios((total + table[:, i])[:, None])[0]))] += 1
    return counts


_PROCEDURES: Mapping[Procedure, Callable[[Floats, Counts, Sequence[str], int], Counts]] = {
    "all": lambda table, *_: np.ones(table.shape[1], dtype=np.int64),
    "best": _best,
    "greedy": _greedy,
}
