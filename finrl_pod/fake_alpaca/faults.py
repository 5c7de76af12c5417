"""Fault injection: rules that disturb requests and stream messages, scripted one by one or drawn from a seed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from finrl_pod.errors import InputError
from finrl_pod.fake_alpaca.settings import first_fault
from finrl_pod.random import key

# docs/fake-alpaca.md explains the kinds.
REQUEST_KINDS = (
    *("answer", "answer_after", "drop", "drop_after", "hang", "hang_after"),
    *("delay", "delay_after", "drip_after", "edit"),
)
STREAM_KINDS = ("duplicate", "hold", "lose", "disconnect", "silence", "refuse")


@dataclass(frozen=True)
class Fault:
    """One fault rule. Empty filters match everything.

    kind: one of REQUEST_KINDS and STREAM_KINDS. method, path: request that is hit; path is a regular expression that
    may match anywhere. symbol, side: order in the body or message. event: event of a stream message.
    skip: matches to ignore first. times: matches to hit, 0 for all. probability: chance to hit a match. status, body,
    headers: response to send. seconds: real seconds.

    Raises InputError for an unknown kind, an invalid regular expression, or a number out of range.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    kind: str
    method: str = ""
    path: str = ""
    symbol: str = ""
    side: str = ""
    event: str = ""
    skip: int = 0
    times: int = 1
    probability: float = 1.0
    status: int = 500
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in REQUEST_KINDS and self.kind not in STREAM_KINDS:
            known_kinds = ", ".join([*REQUEST_KINDS, *STREAM_KINDS])
            raise InputError(f"unknown fault kind {self.kind!r}; use one of {known_kinds}")
        try:
            re.compile(self.path)
        except re.error as error:
            raise InputError(f"fault path {self.path!r} is not a regular expression: {error}") from None
        if self.skip < 0 or self.times < 0 or not 0.0 <= self.probability <= 1.0 or self.seconds < 0:
            raise InputError(
                f"a fault's skip, times and seconds must be >= 0 and its probability between 0 and 1, got {self}"
            )

    @classmethod
    def from_json(cls, values: Any) -> Fault:
        """A rule from a JSON object. Raises InputError for a missing kind or an unknown key."""
        try:
            return TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            raise InputError(f"a fault must be an object with kind and known keys: {first_fault(error)}") from None

    def matches_order(self, order: Mapping[str, Any]) -> bool:
        """Whether the filters match the order in a body or message."""
        return self.symbol in ("", order.get("symbol")) and self.side in ("", order.get("side"))


@dataclass
class _ActiveRule:
    """A rule with its counters: matches still to skip, and hits left."""

    rule: Fault
    skips: int
    hits: float


class Faults:
    """Active rules with their counters. The first rule that hits is applied. seed: seed of the probabilities."""

    def __init__(self, rules: Sequence[Fault] = (), seed: int = 0) -> None:
        self._seed = seed
        self._rules: list[_ActiveRule] = []
        self._random = np.random.default_rng(key(seed, 0, "faults"))
        self.add(rules)

    def add(self, rules: Sequence[Fault]) -> None:
        """Append rules after the active ones."""
        self._rules += [_ActiveRule(rule, rule.skip, rule.times or math.inf) for rule in rules]

    def clear(self) -> None:
        """Remove all rules."""
        self._rules = []

    @property
    def waiting(self) -> list[Fault]:
        """Rules that may still hit."""
        return [active.rule for active in self._rules if active.hits]

    def for_request(self, method: str, path: str, order: Mapping[str, Any]) -> Fault | None:
        """Rule that hits a request, or None. order: the body of the request."""
        return self._first_hit(
            lambda rule: (
                rule.kind in REQUEST_KINDS
                and rule.method in ("", method)
                and re.search(rule.path, path) is not None
                and rule.matches_order(order)
            )
        )

    def for_message(self, event: str, order: Mapping[str, Any]) -> Fault | None:
        """Rule that hits a stream message, or None."""
        kinds = set(STREAM_KINDS) - {"refuse"}
        return self._first_hit(
            lambda rule: rule.kind in kinds and rule.event in ("", event) and rule.matches_order(order)
        )

    def for_connection(self) -> Fault | None:
        """Rule that refuses a new stream connection, or None."""
        return self._first_hit(lambda rule: rule.kind == "refuse")

    def _first_hit(self, matches: Callable[[Fault], bool]) -> Fault | None:
        for active in self._rules:
            rule = active.rule
            if not active.hits or not matches(rule):
                continue
            if rule.probability < 1.0 and self._random.random() >= rule.probability:
                continue
            if active.skips:
                active.skips -= 1
                continue
            active.hits -= 1
            return rule
        return None


def random_faults(rate: float, hang: float = 0.2) -> list[Fault]:
    """Rules that hit a fraction `rate` of all requests and stream messages without end. None of them loses an order.

    hang: real seconds for which a hanging connection is held.
    """
    bad_gateway = "<html><body>502 Bad Gateway</body></html>"
    timeout = {"message": "gateway timeout"}
    everywhere: dict[str, Any] = {"times": 0, "probability": rate / 10}  # ten kinds of request faults
    trading: dict[str, Any] = {"path": "/v2/(orders|positions|account)", **everywhere}
    return [
        Fault("answer", status=500, body={"message": "internal server error"}, **everywhere),
        Fault("answer", status=503, body={"message": "service unavailable"}, **everywhere),
        Fault("answer", status=504, body=timeout, **everywhere),
        Fault("answer_after", status=504, body=timeout, **trading),
        Fault("answer", status=200, body=bad_gateway, headers={"Content-Type": "text/html"}, **trading),
        Fault("drop", **everywhere),
        Fault("drop_after", **trading),
        Fault("hang_after", seconds=hang, **trading),
        Fault("drip_after", seconds=hang, **trading),
        Fault("delay_after", seconds=hang / 10, **everywhere),
        Fault("duplicate", times=0, probability=rate),
        Fault("hold", times=0, probability=rate, seconds=hang),
        Fault("lose", times=0, probability=rate),
        Fault("disconnect", times=0, probability=rate / 4),
    ]
