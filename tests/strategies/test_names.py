"""Names of strategies, which are checked without loading them."""

from __future__ import annotations

from pathlib import Path

import pytest
from finrl_pod_strategies import BASELINE_NAMES, SEEDED_BASELINE_NAMES, check_strategy_name
from finrl_pod_strategies.baselines import BASELINES, SEEDED_BASELINES

from finrl_pod.errors import InputError


def test_the_names_are_those_of_the_baselines() -> None:
    assert (tuple(BASELINES), tuple(SEEDED_BASELINES)) == (BASELINE_NAMES, SEEDED_BASELINE_NAMES)
    for name in (*BASELINE_NAMES, *SEEDED_BASELINE_NAMES):
        check_strategy_name(name)


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("class Own:\n    pass\n", "Own", None),
        ("from other import *\n", "Own", None),  # the name may come from there
        ("class Own(:\n", "Other", None),  # refused when it is imported, with its line
        ("class Own:\n    pass\n", "Onw", r"own\.py has no Onw; did you mean Own\?"),
        ("class Own:\n    pass\n", "Momentum", r"own\.py has no Momentum; it defines Own"),
        ("raise SystemExit\n", "Own", None),
    ],
)
def test_files_are_checked_without_running_them(tmp_path: Path, text: str, name: str, message: str | None) -> None:
    (tmp_path / "own.py").write_text(text, encoding="utf-8")
    reference = f"{tmp_path / 'own.py'}:{name}"
    if message is None:
        check_strategy_name(reference)
        return
    with pytest.raises(InputError, match=message):
        check_strategy_name(reference)
