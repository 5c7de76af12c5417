"""Records exchanged between daemon and broker."""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from decimal import Decimal

import pytest

from finrl_pod.paper.domain.records import ActionKind, CorporateAction, OrderStatus, Side


def test_unknown_status_is_not_terminal() -> None:
    assert OrderStatus.parse("quarantined") is OrderStatus.UNKNOWN
    assert not OrderStatus.UNKNOWN.terminal


@pytest.mark.parametrize("word", ["filled", "canceled", "expired", "replaced", "rejected"])
def test_terminal_statuses(word: str) -> None:
    assert OrderStatus.parse(word).terminal


def test_done_for_day_is_not_terminal() -> None:
    assert not OrderStatus.DONE_FOR_DAY.terminal


def test_sides() -> None:
    assert (Side.BUY.sign, Side.SELL.sign) == (1, -1)
    assert Side.BUY.opposite is Side.SELL


def test_reverse_split_ratio_is_below_one() -> None:
    action = CorporateAction("1", ActionKind.SPLIT, "A", date(2024, 1, 2), new=Decimal(1), old=Decimal(4))
    assert action.ratio == Decimal("0.25")


def test_broker_port_imports_no_heavy_modules() -> None:
    code = (
        "import sys, finrl_pod.paper.domain.port; print([m for m in ('torch', 'numpy', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
