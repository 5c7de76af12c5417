"""The slices of an intent: when each is due, and what is done with the shares that are left after the last one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Literal

from finrl_pod.market.slicing import SlicePlan

Fallback = Literal["market", "next_session"]


@dataclass(frozen=True)
class SliceWindow:
    """A part of a session. start: start of the first slice; the others follow at the interval."""

    start: datetime
    interval: timedelta
    steps: int

    @property
    def end(self) -> datetime:
        """One interval after the start of the last slice."""
        return self.start + self.steps * self.interval

    @property
    def last(self) -> datetime:
        """Start of the last slice."""
        return self.start + (self.steps - 1) * self.interval

    def step(self, now: datetime) -> int:
        """The slice that a time falls in: negative before the first, `steps` after the last."""
        return min((now - self.start) // self.interval, self.steps)

    def next_after(self, now: datetime) -> datetime | None:
        """Start of the next slice, or the end of the window; None after it."""
        step = max(self.step(now) + 1, 0)
        return self.start + step * self.interval if step <= self.steps else None


@dataclass(frozen=True)
class Slicing:
    """How an intent is sent in slices.

    fallback: what is left after the last slice is sent as a market order, or closed, so that the target of the decision
    orders it again in the next session.
    """

    window: SliceWindow
    plan: SlicePlan
    fallback: Fallback

    def over(self, now: datetime) -> bool:
        """True after the interval of the last slice."""
        return now >= self.window.end

    def due(self, now: datetime, last_sent: datetime | None) -> bool:
        """Whether an order is due: none was sent yet in the current slice, or after the last one in the fallback."""
        step = self.window.step(now)
        if step < 0 or (step == self.window.steps and self.fallback != "market"):
            return False
        return last_sent is None or self.window.step(last_sent) < step

    def quantity(
        self, now: datetime, order: Decimal, left: Decimal, unit: Decimal, last_volume: float | None = None
    ) -> Decimal:
        """Shares of the order that is due, of `left` ones of the intent's `order`; all of them in the fallback."""
        step = self.window.step(now)
        return left if step == self.window.steps else self.plan.quantity(step, order, left, unit, last_volume)

    def pack(self) -> str:
        """The slices as JSON, for the journal."""
        window = self.window
        plan = self.plan
        return json.dumps(
            {
                "start": window.start.isoformat(), "interval": window.interval.total_seconds(),
                "schedule": plan.schedule, "profile": plan.profile, "volume": plan.volume,
                "participation": plan.participation, "urgency": plan.urgency, "fallback": self.fallback,
            },
            sort_keys=True,
        )  # fmt: skip

    @classmethod
    def unpack(cls, content: str) -> Slicing:
        """The slices from the JSON of `pack`."""
        values = json.loads(content)
        profile = tuple(values["profile"])
        window = SliceWindow(
            datetime.fromisoformat(values["start"]), timedelta(seconds=values["interval"]), len(profile)
        )
        names = ("schedule", "volume", "participation", "urgency")
        return cls(window, SlicePlan(profile=profile, **{name: values[name] for name in names}), values["fallback"])
