"""Client order ids."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finrl_pod.paper.domain.intents import client_order_id, is_run_order_id
from finrl_pod.paper.domain.records import CLIENT_ORDER_ID_MAX, Side

parts = st.tuples(
    st.text(min_size=1, max_size=64), st.dates().map(str), st.text("ABCXYZ./-", min_size=1, max_size=24),
    st.sampled_from(Side), st.integers(0, 99),
)  # fmt: skip


def test_client_order_id_round_trip() -> None:
    assert client_order_id("demo", "2024-01-05", "AAPL", Side.BUY, 0) == "fp1.demo.20240105.AAPL.b0"


@pytest.mark.slow
@given(parts)
def test_client_order_ids_satisfy_broker_limits(part: tuple[str, str, str, Side, int]) -> None:
    name = client_order_id(*part)
    assert len(name) <= CLIENT_ORDER_ID_MAX
    assert re.fullmatch(r"[A-Za-z0-9.]+", name)
    assert is_run_order_id(name, part[0])


@given(parts, parts)
def test_different_parts_give_different_ids(
    a: tuple[str, str, str, Side, int], b: tuple[str, str, str, Side, int]
) -> None:
    assert (client_order_id(*a) == client_order_id(*b)) == (a == b)


def test_client_order_id_is_the_same_on_every_machine() -> None:
    name = client_order_id("my paper run", "2024-01-05", "BRK.B", Side.SELL, 3)
    assert name == "fp1.5b3b00ca48.20240105.0907abf5bc.s3"  # checked with sha256sum


def test_external_order_ids_are_not_recognised() -> None:
    assert not is_run_order_id("fp1.demo2.20240105.A.b0", "demo")
    assert not is_run_order_id("8c7ddc0e-1f60-4f4c-a4c8-f0ef6a2b40ab", "demo")


def test_attempts_are_bounded() -> None:
    with pytest.raises(ValueError, match="attempt must be 0 to 99"):
        client_order_id("demo", "2024-01-05", "A", Side.BUY, 100)
