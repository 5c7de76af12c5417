"""The promotion gate: it evaluates every rule and issues the verdict, which is stored with the run.

A champion is promoted if all rules pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from finrl_pod.errors import RunError
from finrl_pod.evaluate.intervals import DRAWS, MIN_BARS
from finrl_pod.files import other_folder, read_json, to_plain, write_json
from finrl_pod.promotion.diagnostics import PBO_BLOCKS, diagnostics
from finrl_pod.promotion.rules import (
    PromotionEvidence,
    Rule,
    audit_rule,
    break_even_rule,
    drawdown_rule,
    edge_rule,
)
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import GateConfig

VERDICT_FILE = "verdict.json"
RULE_FIELDS = tuple(item.name for item in fields(Rule))


@dataclass(frozen=True)
class Verdict:
    """Whether a champion is promoted, and why.

    reasons: sentences of the rules that failed, or of all if it is promoted. trials: raw and clustered counts, and the
    number of runs they come from. looks: at the test period, including this one. edge: fields of `Edge`, empty if the
    test could not be computed. statistics: further plain values.
    """

    promoted: bool
    reasons: tuple[str, ...]
    rules: tuple[Rule, ...] = ()
    trials: Mapping[str, int] = field(default_factory=dict)
    looks: int = 0
    edge: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The verdict as JSON holds it, NaN and infinity as null."""
        values: dict[str, Any] = to_plain({**vars(self), "rules": [asdict(rule) for rule in self.rules]})
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Verdict:
        """Read a verdict from `plain`. Raises RunError for missing fields and for rules that contradict it."""
        try:
            rules = tuple(Rule(**{name: rule[name] for name in RULE_FIELDS}) for rule in values["rules"])
            known = {name: values[name] for name in ("promoted", "trials", "looks", "edge", "statistics")}
            verdict = cls(reasons=tuple(values["reasons"]), rules=rules, **known)
            complete = set(verdict.trials) >= {"raw", "clustered", "runs"}
        except (KeyError, TypeError):
            complete = False
        if not complete:
            raise RunError("the saved verdict is damaged: a field is missing; start a new run")
        if verdict.promoted is not (bool(rules) and all(rule.passed is True for rule in rules)):
            raise RunError("the saved verdict contradicts its own rules: the file was changed; start a new run")
        return verdict


def write_verdict(folder: Path, verdict: Verdict) -> Path:
    """Write verdict.json into a run's folder."""
    return write_json(folder / VERDICT_FILE, verdict.to_dict())


def read_verdict(folder: Path) -> Verdict:
    """Read the verdict of a finished run. Raises RunError if there is none yet or it is damaged."""
    if not (folder / VERDICT_FILE).exists():
        if not folder.exists():
            raise RunError(f"there is no folder {folder}; name the one that the run was written into")
        untested = (
            f"{folder} holds no verdict: it was not tested, or not finished; repeat its command with --resume --out "
            f"{folder} and without --no-test (in Python with resume=True and test=True)"
        )
        raise RunError(other_folder(folder) or untested)
    return Verdict.from_dict(read_json(folder / VERDICT_FILE))


def check(gate: GateConfig) -> None:
    """Raises ConfigError for a threshold out of its range."""
    check_settings("gate.", gate)


def min_bars() -> tuple[int, int]:
    """Bars that validation and test need at least: two returns per block of the PBO, and enough for a bootstrap."""
    return max(2 * PBO_BLOCKS, MIN_BARS) + 1, MIN_BARS + 1


def apply_gate(evidence: PromotionEvidence, gate: GateConfig, draws: int = DRAWS) -> Verdict:
    """Evaluate every rule and issue the verdict. draws: of each bootstrap.

    A rule whose statistic cannot be computed (a champion that equals its reference) fails, and its sentence states why.
    Raises InputError for fewer than 20 returns on test.
    """
    found, edge = edge_rule(evidence, gate)
    rules = (
        found,
        drawdown_rule(evidence),
        break_even_rule(evidence),
        audit_rule(evidence),
    )
    statistics = diagnostics(evidence, draws)
    statistics["audit_warnings"] = list(evidence.warnings)
    promoted = all(rule.passed for rule in rules)
    return Verdict(
        promoted=promoted,
        reasons=tuple(rule.sentence for rule in rules if promoted or not rule.passed),
        rules=rules,
        trials=asdict(evidence.counts),
        looks=evidence.looks,
        edge={} if edge is None else to_plain(edge.to_dict()),
        statistics=to_plain(statistics),
    )
