"""What a walk-forward has shown: its champions one after another on one account, beside everything that was tried."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from finrl_pod_strategies.baselines import make, run_baselines
from finrl_pod_strategies.policy import PolicyStrategy
from finrl_pod_strategies.scheduled import Relay

from finrl_pod import __version__
from finrl_pod.data.dates import stamp
from finrl_pod.data.splits import Span
from finrl_pod.data.tensor import build_market
from finrl_pod.evaluate.audit.sensitivity import break_even_of
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.folds import Fold
from finrl_pod.evaluate.metrics import bars_a_year, simple_returns, summary, to_json
from finrl_pod.evaluate.seeds import improvement, interquartile_mean, seeds_interval
from finrl_pod.evaluate.variations import recorded
from finrl_pod.files import write_text
from finrl_pod.market.rules import rules_of
from finrl_pod.promotion.gate import CHAMPION, REFERENCE, Evidence
from finrl_pod.promotion.trial_registry import Look, Registry
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.leaderboard import ChampionMembers, Leaderboard
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import BacktestResult, Floats, Panel
from finrl_pod_app.report.document import build_document, to_plain, write_json
from finrl_pod_app.report.html import write_report
from finrl_pod_app.services.audit import audit_champion
from finrl_pod_app.services.champions import ledgers_of, load_champion
from finrl_pod_app.services.doctor import installed_versions
from finrl_pod_app.services.promotion import Ground
from finrl_pod_app.services.trial_log import dates
from finrl_pod_app.services.verdict import Judged, verdict, write_verdict

PROBES = 2  # of the audit of each run
WHERE = ("out of sample", "out of sample")
FILE, CURVES = "walkforward.json", "curves.csv"


@dataclass(frozen=True, eq=False)
class Leg:
    """A fold trained by one seed. board: its leaderboard. members: of its champion."""

    fold: Fold
    seed: int
    ground: Ground
    run: RunDirectory
    board: Leaderboard
    members: ChampionMembers

    def champion(self) -> PolicyStrategy:
        """The ensemble of this leg."""
        return load_champion(self.run, self.members)


def stitched(
    config: RunConfig, panel: Panel, legs: Sequence[Leg], out: Path, registry: Registry, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Run the relay of champions and each seed's alone over all tests, judge it, and write what came out."""
    span = Span(legs[0].fold.test.first, max(leg.fold.test.last for leg in legs))
    names = legs[0].champion().feature_names
    market = build_market(panel, names, (0, len(panel.times) - 1), config.environment.fill)
    terms = (panel, market, span.first, span.last, rules_of(config.environment), config.environment.cash)
    seeds = sorted({leg.seed for leg in legs})
    first, last = dates(panel, span)
    look = Look(panel.sha256, _subject(config, legs), first, last, f"walk-forward of {len(seeds)} seeds")
    kept = registry.verdict(look)
    audits = [] if kept else _audit(legs, tell)
    tell("stitching the champions of all folds")
    looks = registry.look(look, panel)
    result, watched = recorded(_relay(panel, [_together(legs, fold) for fold in _folds(legs)]), *terms)
    alone = {
        seed: backtest(_relay(panel, [(leg.fold, leg.champion()) for leg in legs if leg.seed == seed]), *terms)
        for seed in seeds
    }
    results = {CHAMPION: result, **run_baselines(*terms)}
    if kept is None:
        evidence = Evidence(
            validation=results,
            test=results,
            trials=_trials(legs, results[REFERENCE], span),
            counts=registry.counts(panel.sha256),
            looks=looks,
            cost_bps=config.environment.cost_bps,
            break_even=break_even_of(
                watched,
                recorded(make(REFERENCE), *terms)[1],
                *terms[1:],
                beyond=config.gate.break_even * config.environment.cost_bps,
            ),
            faults=tuple(audits),
            seed=config.seed,
            where=WHERE,
        )
        kept = registry.keep_verdict(look, verdict(evidence, config.gate).plain())
    judged = Judged.from_plain(kept)
    write_verdict(out, judged)
    tell("writing the report")
    document = to_plain(_document(config, panel, legs, alone, results, span, judged))
    write_json(out / FILE, document)
    write_text(out / CURVES, _csv(results, alone))
    page = build_document(
        config=config,
        panel=panel,
        splits={"test": [first, last]},
        results=results,
        versions=installed_versions(),
        verdict=judged,
    )
    write_report(out, page, results)
    return dict(document)


# ---------------------------------------------------------------------- pieces


def _folds(legs: Sequence[Leg]) -> list[Fold]:
    return list({leg.fold.number: leg.fold for leg in legs}.values())


def _together(legs: Sequence[Leg], fold: Fold) -> tuple[Fold, PolicyStrategy]:
    """The champions of all seeds of a fold as one: their weights are averaged."""
    own = [leg for leg in legs if leg.fold == fold]
    snapshots = [leg.run.snapshot(agent) for leg in own for agent in leg.members.ids]
    shares = [share / len(own) for leg in own for share in leg.members.shares]
    return fold, PolicyStrategy(snapshots, shares, rule=own[0].members.rule)


def _relay(panel: Panel, runners: Sequence[tuple[Fold, PolicyStrategy]]) -> Relay:
    return Relay([(panel.times[fold.test.first], champion) for fold, champion in runners])


def _audit(legs: Sequence[Leg], tell: Callable[[str], None]) -> list[str]:
    """Faults in every fold's and seed's way from prices to decisions."""
    faults = []
    for leg in legs:
        where = f"fold {leg.fold.number}, seed {leg.seed}"
        tell(f"auditing {where}")
        ground = leg.ground
        found = audit_champion(
            leg.run, ground.panel, ground.config, leg.members, ground.last_decision, costs=False, probes=PROBES
        )
        faults += [f"{where}: {finding.message}" for finding in found.findings if finding.status == "fail"]
    return faults


def _trials(legs: Sequence[Leg], reference: BacktestResult, span: Span) -> Floats:
    """[T, N] returns over equal weight out of sample: for each seed, who stood first, second, ... on its leaderboards.

    Each fold starts from cash; a place that some leaderboard does not have is left out.
    """
    equal = simple_returns(reference.equity)
    columns = []
    for seed in sorted({leg.seed for leg in legs}):
        own = [leg for leg in legs if leg.seed == seed]
        places = min(len(leg.board.scores) for leg in own)
        parts = [_members_returns(leg, places, min(leg.fold.test.last + 1, span.last)) for leg in own]
        columns.append(np.concatenate(parts) - equal[:, None])
    return np.concatenate(columns, axis=1)


def _members_returns(leg: Leg, places: int, last: int) -> Floats:
    """[bars, places] simple returns of the best of a leaderboard from the first bar of the fold's test to `last`."""
    agents = [leg.run.snapshot(score.id) for score in leg.board.scores[:places]]
    ground, columns = leg.ground, [np.empty(0)] * places
    for members, ledger in ledgers_of(agents, ground.market, ground.config.environment, leg.fold.test.first, last):
        for i, equity in zip(members, ledger.equity.cpu().numpy().T, strict=True):
            columns[i] = simple_returns(equity)
    return np.stack(columns, 1)


def _document(
    config: RunConfig,
    panel: Panel,
    legs: Sequence[Leg],
    alone: Mapping[int, BacktestResult],
    results: Mapping[str, BacktestResult],
    span: Span,
    judged: Judged,
) -> dict[str, Any]:
    """Every fold's and seed's part of its own stitched curve, the baselines', and what seeds say together."""

    def part(result: BacktestResult, fold: Fold) -> dict[str, float | None]:
        begin, end = fold.test.first - span.first, min(fold.test.last + 1, span.last) - span.first
        rows = slice(begin, end + 1)
        cash = None if result.risk_free is None else result.risk_free[begin:end]
        turnover, costs = result.turnover[rows].copy(), result.costs[rows].copy()
        # A bar where folds meet is in both; what was traded there belongs to the one that decided it.
        if config.environment.fill == "same_close":
            if end < span.last - span.first:
                turnover[-1] = costs[-1] = 0.0
        elif begin > 0:
            turnover[0] = costs[0] = 0.0
        columns = (result.equity[rows], turnover, costs)
        return to_json(summary(*columns, bars_a_year(result.times), cash))

    def days(of: Span) -> list[str]:
        return list(dates(panel, of))

    folds = _folds(legs)
    runs = [
        {
            "fold": leg.fold.number,
            "seed": leg.seed,
            **part(alone[leg.seed], leg.fold),
            "members": list(leg.members.ids),
            "validation_sharpe": leg.board.scores[0].score,
        }
        for leg in legs
    ]
    scores = np.array(
        [[row["sharpe"] for row in runs if row["seed"] == seed] for seed in alone], dtype=np.float64
    )  # [seeds, folds]
    equal = np.array([[part(results[REFERENCE], fold)["sharpe"] for fold in folds]], dtype=np.float64)
    together: dict[str, Any] = {"interquartile_mean": interquartile_mean(scores)}
    if len(alone) > 1:
        together["interval"] = seeds_interval(scores, seed=config.seed)._asdict()
        together["improvement_over_equal_weight"] = improvement(scores, equal, seed=config.seed)._asdict()
    return {
        "config_sha256": config.sha256,
        "data": {"name": panel.name, "sha256": panel.sha256},
        "out_of_sample": days(span),
        "folds": [
            {
                "fold": fold.number,
                **{name: days(getattr(fold, name)) for name in ("train", "validation", "test")},
                "equal_weight_sharpe": float(equal[0, i]),
            }
            for i, fold in enumerate(folds)
        ],
        "runs": runs,
        "seeds": [{"seed": seed, **to_json(result.metrics)} for seed, result in alone.items()],
        "seeds_together": together,
        "strategies": {name: to_json(result.metrics) for name, result in results.items()},
        "verdict": judged.plain(),
    }


def _csv(results: Mapping[str, BacktestResult], alone: Mapping[int, BacktestResult]) -> str:
    """A line a bar: its time, and the equity of every curve. Names are our own, so no cell is a formula."""
    curves = {**results, **{f"champion of seed {seed}": result for seed, result in alone.items()}}
    lines = [",".join(["time", *curves])]
    for t, time in enumerate(results[CHAMPION].times):
        values = (f"{result.equity[t]:.2f}" for result in curves.values())
        lines.append(",".join([stamp(time, "1m").removesuffix("T00:00Z"), *values]))
    return "\n".join(lines) + "\n"


def _subject(config: RunConfig, legs: Sequence[Leg]) -> str:
    """What names a walk-forward: its config, its version, and the very weights of all its champions."""
    digest = hashlib.sha256(repr((config.sha256, __version__)).encode())
    for leg in legs:
        digest.update(repr((leg.fold.number, leg.seed, leg.members.shares)).encode())
        for agent in leg.members.ids:
            weights = leg.run.snapshot(agent).weights
            for name in sorted(weights):
                digest.update(np.ascontiguousarray(weights[name].numpy()).tobytes())
    return digest.hexdigest()
