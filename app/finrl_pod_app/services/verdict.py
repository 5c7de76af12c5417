"""Whether a champion is promoted: the gate's rules applied to a run, once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finrl_pod.errors import RunError
from finrl_pod.files import read_json, to_plain, write_json
from finrl_pod.promotion.gate import PromotionEvidence, judge
from finrl_pod.promotion.rules import Rule
from finrl_pod.settings.run import GateConfig
from finrl_pod_app.report.document import Verdict

FILE = "verdict.json"
RULE_FIELDS = {field.name for field in dataclasses.fields(Rule)}


@dataclass(frozen=True)
class Judged(Verdict):
    """The verdict with all that led to it, plain values. rules: name, value, limit, passed and sentence of each.
    trials: raw and clustered counts, and the runs they came from. looks: at the test period when this one was made."""

    rules: tuple[Mapping[str, Any], ...] = ()
    trials: Mapping[str, int] = field(default_factory=dict)
    looks: int = 0
    statistics: Mapping[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As JSON knows it."""
        values: dict[str, Any] = to_plain(vars(self))
        return values

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Judged:
        """Back from `plain`. Raises RunError for what is no verdict."""
        try:
            known = {name: values[name] for name in ("promoted", "trials", "looks", "statistics")}
            judged = cls(reasons=tuple(values["reasons"]), rules=tuple(values["rules"]), **known)
            met = bool(judged.rules) and all(rule["passed"] is True for rule in judged.rules)
            whole = all(set(rule) >= RULE_FIELDS for rule in judged.rules)
            whole = whole and set(judged.trials) >= {"raw", "clustered", "runs"}
        except (KeyError, TypeError):
            whole = False
        if not whole:
            raise RunError("the saved verdict is damaged: it lacks a field; start a new run")
        if judged.promoted is not met:
            raise RunError("the saved verdict contradicts its own rules: the file was changed; judge the run again")
        return judged


def verdict(evidence: PromotionEvidence, gate: GateConfig) -> Judged:
    """The gate's judgement as a report shows it. reasons: of a refusal, the rules that are not met; else all."""
    judgement = judge(evidence, gate)
    return Judged(
        promoted=judgement.promoted,
        reasons=tuple(rule.sentence for rule in judgement.rules if judgement.promoted or not rule.passed),
        rules=tuple(dataclasses.asdict(rule) for rule in judgement.rules),
        trials=dataclasses.asdict(evidence.counts),
        looks=evidence.looks,
        statistics=to_plain(judgement.statistics),
    )


def write_verdict(folder: Path, judged: Judged) -> Path:
    """Write verdict.json into a run's folder."""
    return write_json(folder / FILE, judged.plain())


def read_verdict(folder: Path) -> Judged:
    """The verdict of a finished run. Raises RunError where there is none yet."""
    if not (folder / FILE).exists():
        raise RunError(
            f"{folder} holds no verdict: let the run finish (finrl-pod tournament ... --resume --out {folder})"
        )
    return Judged.from_plain(read_json(folder / FILE))
