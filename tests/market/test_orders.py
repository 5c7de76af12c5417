"""Fill of an order on a straight line from the open to the close of a session."""

from __future__ import annotations

from decimal import Decimal

import pytest

from finrl_pod.market.orders import fill_on_path


@pytest.mark.parametrize(
    ("limit", "buys", "expected"),
    [
        (None, True, (0.25, 102.5)),
        (Decimal(105), True, (0.25, 102.5)),
        (Decimal(102), True, None),  # the price only rises
        (Decimal(105), False, (0.5, 105.0)),
        (Decimal(111), False, None),
    ],
)
def test_fill_on_a_line_from_open_to_close(
    limit: Decimal | None, expected: tuple[float, float] | None, *, buys: bool
) -> None:
    assert fill_on_path(100.0, 110.0, 0.25, limit, buys=buys) == expected
