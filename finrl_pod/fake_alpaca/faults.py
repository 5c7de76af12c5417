"""Faults on purpose: which request or message is hit, how, how often. Scripted one by one, or at random from a seed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from finrl_pod.errors import InputError
from finrl_pod.fake_alpaca.settings import read_list
from finrl_pod.random import key

REQUEST_KINDS = {
    "answer": "answer with `status` and `body` and do nothing",
    "answer_after": "do what was asked, then answer with `status` and `body` all the same",
    "drop": "break the connection and do nothing",
    "drop_after": "do what was asked, then break the connection",
    "hang": "do nothing and say nothing for `seconds`, then break the connection",
    "hang_after": "do what was asked, say nothing for `seconds`, then break the connection",
    "delay": "wait `seconds`, then do what was asked",
    "delay_after": "do what was asked, wait `seconds`, then answer",
    "edit": "answer as ever, with the fields of `body` put in (null takes a field away), in every element of a list",
}
STREAM_KINDS = {
    "duplicate": "send the message twice",
    "hold": "send the message after the next one, or after `seconds`",
    "lose": "do not send the message",
    "disconnect": "break the connection instead of sending the message",
    "silence": "send nothing for `seconds`, pings excepted",
    "refuse": "answer a new connection with error 406 and close it",
}


@dataclass(frozen=True)
class Fault:
    """One rule. Empty filters match everything.

    method, path: of a request, the path as a regular expression found anywhere in it. symbol, side: of an order in the
    body or message. event: of a stream message. skip: matches to let pass first; times: how many to hit, 0 for all;
    probability: of hitting each match. seconds: real ones, for they are about sockets.
    """

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
            known = ", ".join([*REQUEST_KINDS, *STREAM_KINDS])
            raise InputError(f"a fault's kind must be one of {known}, got {self.kind!r}")
        try:
            re.compile(self.path)
        except re.error as error:
            raise InputError(f"a fault's path must be a regular expression, got {self.path!r}: {error}") from None
        if self.skip < 0 or self.times < 0 or not 0.0 <= self.probability <= 1.0 or self.seconds < 0:
            raise InputError(
                f"a fault's skip, times, seconds must be 0 or more and its probability in 0..1, got {self}"
            )

    @classmethod
    def read(cls, values: Any) -> Fault:
        """From JSON. Raises InputError for a key that no fault has."""
        known = {f.name for f in dataclasses.fields(cls)}
        if not isinstance(values, Mapping) or not set(values) <= known or "kind" not in values:
            raise InputError(f"a fault is an object with `kind` and some of {', '.join(sorted(known))}; got {values!r}")
        return cls(**values)

    def hits_request(self, method: str, path: str, order: Mapping[str, Any]) -> bool:
        return (
            self.kind in REQUEST_KINDS
            and self.method in ("", method)
            and re.search(self.path, path) is not None
            and self._hits_order(order)
        )

    def hits_message(self, event: str, order: Mapping[str, Any]) -> bool:
        return self.kind in STREAM_KINDS and self.event in ("", event) and self._hits_order(order)

    def _hits_order(self, order: Mapping[str, Any]) -> bool:
        return self.symbol in ("", order.get("symbol")) and self.side in ("", order.get("side"))


def read_faults(path: Path) -> list[Fault]:
    """A JSON list of rules. Raises InputError naming the file or the rule."""
    return [Fault.read(rule) for rule in read_list(path)]


class Faults:
    """The rules in force, and how far each has come. The first rule that hits wins."""

    def __init__(self, rules: Sequence[Fault] = (), seed: int = 0) -> None:
        self._seed = seed
        self._rules: list[tuple[Fault, list[int]]] = []
        self._random = np.random.default_rng(key(seed, 0, "faults"))
        self.add(rules)

    def add(self, rules: Sequence[Fault]) -> None:
        self._rules += [(rule, [rule.skip, rule.times or -1]) for rule in rules]

    def clear(self) -> None:
        self._rules = []

    @property
    def waiting(self) -> list[Fault]:
        """Rules that may still hit."""
        return [rule for rule, (_, left) in self._rules if left]

    def request(self, method: str, path: str, order: Mapping[str, Any]) -> Fault | None:
        return self._first(lambda rule: rule.hits_request(method, path, order))

    def message(self, event: str, order: Mapping[str, Any]) -> Fault | None:
        return self._first(lambda rule: rule.kind != "refuse" and rule.hits_message(event, order))

    def connection(self) -> Fault | None:
        return self._first(lambda rule: rule.kind == "refuse")

    def _first(self, hits: Any) -> Fault | None:
        for rule, state in self._rules:
            if not state[1] or not hits(rule):
                continue
            if rule.probability < 1.0 and self._random.random() >= rule.probability:
                continue
            if state[0]:
                state[0] -= 1
                continue
            state[1] -= 1
            return rule
        return None


def random_faults(rate: float, hang: float = 0.2) -> list[Fault]:
    """Rules that hit a share `rate` of all requests and stream messages, for ever; none of them destroys an order.

    hang: real seconds that a hanging connection is held.
    """
    page = "<html><body>502 Bad Gateway</body></html>"
    gone = {"message": "gateway timeout"}
    each = rate / 9
    always: dict[str, Any] = {"times": 0, "probability": each}
    orders: dict[str, Any] = {"path": "/v2/(orders|positions|account)", **always}
    return [
        Fault("answer", status=500, body={"message": "internal server error"}, **always),
        Fault("answer", status=503, body={"message": "service unavailable"}, **always),
        Fault("answer", status=504, body=gone, **always),
        Fault("answer_after", status=504, body=gone, **orders),
        Fault("answer", status=200, body=page, headers={"Content-Type": "text/html"}, **orders),
        Fault("drop", **always),
        Fault("drop_after", **orders),
        Fault("hang_after", seconds=hang, **orders),
        Fault("delay_after", seconds=hang / 10, **always),
        Fault("duplicate", times=0, probability=rate),
        Fault("hold", times=0, probability=rate, seconds=hang),
        Fault("lose", times=0, probability=rate),
        Fault("disconnect", times=0, probability=rate / 4),
    ]
