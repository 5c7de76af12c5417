"""Text that is not TOML: the sentence names line, key, value and fix, and the fix is TOML."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from finrl_pod.errors import ConfigError
from finrl_pod.settings.run import load, parse
from finrl_pod.settings.toml import parse_toml, read_toml

VALUES = {
    "0,1": "has a decimal comma; write 0.1",
    "-0,5": "has a decimal comma; write -0.5",
    "1,5e-3": "has a decimal comma; write 1.5e-3",
    "1.000,50": "has a decimal comma; write 1000.50",
    "1,000": "has a comma; write 1000, or 1.000 if it separates decimals",
    "1,000.5": "has separators of thousands; write 1000.5",
    "1.000.000": "has separators of thousands; write 1000000",
    "1'000'000": "has separators of thousands; write 1000000",
    "01": "begins with a zero; write 1",
    ".5": "has no digit on one side of the point; write 0.5",
    "5.": "has no digit on one side of the point; write 5.0",
    "10%": "has a percent sign; write 0.1",
    "10 bps": "has a unit; write 10",
    "31.12.2020": 'is not a date in this form; write "2020-12-31"',
    "12/31/2020": 'is not a date in this form; write "2020-12-31"',
    "01/02/2020": 'is not a date in this form; write "YYYY-MM-DD"',
    "sample": 'has no quotes; write "sample"',
    "“sample”": 'has typographic quotes; write "sample"',
    '"sample': 'has no closing quote; add "',
    'sample"': 'has no opening quote; write "sample"',
    "'sample": "has no closing quote; add '",
    "True": "is not valid; write true",
    "no": "is not valid; write false",
    "None": "is not valid; remove the line for the default",
    "1;": "ends with ';'; write 1",
    "1 // note": "is followed by '//'; begin comments with #",
    '"C:\\Users"': "has a backslash in double quotes; write / instead, or single quotes",
    '["a" "b"]': "is a list without its end or with a missing comma; write [item, item]",
    "1 2": "is not a value; put text in quotes, and begin a comment with #",
}


@pytest.mark.parametrize(("value", "problem"), VALUES.items())
def test_values_in_another_notation(value: str, problem: str) -> None:
    text = f"seed = 1\n[environment]\n# costs\ncost_bps = {value}\nenvs = 4\n"
    with pytest.raises(ConfigError) as raised:
        parse_toml(text, "config a.toml")
    assert str(raised.value) == f"config a.toml, line 4: environment.cost_bps = {value} {problem}"
    if written := re.search(r"; write ([^ ,]+)$", problem):
        assert tomllib.loads(f"a = {written[1]}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seed =", "line 1: seed has no value; write seed = VALUE, or remove the line for the default"),
        ("seed == 1", "line 1: seed has two equals signs; write seed = 1"),
        ("seed = 0,1  # of all", "line 1: seed = 0,1 has a decimal comma; write 0.1"),
        ("[gate]\nseed: 1", "line 2: seed: 1 has a colon; write seed = 1"),
        ("seed = 1\nseed = 2", "line 2: seed is set twice; remove one of the lines"),
        ("[gate]\n[data]\n[gate]", "line 3: the section [gate] stands twice; move its settings to the first one"),
        ("[gate", "line 1: [gate has no closing bracket; write [gate]"),
        ("hello", "line 1: 'hello' is not a setting; write name = value, or begin the line with # for a comment"),
        ("[a]\nb = [\n 'x',\n y,\n]", 'line 4: a.b has the item y, which has no quotes; write "y"'),
        ("b = [x, y]", 'line 1: b has the item x, which has no quotes; write "x"'),
        ("b = [1, 2\nc = 1", "line 1: b = [1, 2 is a list without its end or with a missing comma; write [item, item]"),
        ('b = """x\nc = 1', 'line 1: b = """x has no closing quote; add """'),
        ("b = {c = 1", "line 1: b = {c = 1 is not valid (Unclosed inline table)"),
    ],
)
def test_lines_that_are_no_settings(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_toml(text, "here")
    assert str(raised.value) == f"here, {sentence}"


def test_windows_line_endings_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "windows.toml"
    path.write_bytes(b"\xef\xbb\xbfseed = 3\r\n[environment]\r\ncost_bps = 2.5\r\n")
    assert (load(path).seed, load(path).environment.cost_bps) == (3, 2.5)
    path.write_bytes(b"seed = 3\r\n[environment]\r\ncost_bps = 2,5\r\n")
    with pytest.raises(ConfigError, match=r"line 3: environment\.cost_bps = 2,5 has a decimal comma; write 2\.5$"):
        load(path)


def test_files_in_another_encoding_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "notepad.toml"
    path.write_bytes("seed = 3\n".encode("utf-16"))
    with pytest.raises(ConfigError, match=r"is not UTF-8 text, at byte 0: save it as UTF-8$"):
        read_toml(path)


def test_a_missing_file_names_the_closest_one(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("seed = 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"there is no config .*confg\.toml; did you mean .*/config\.toml\?$"):
        read_toml(tmp_path / "confg.toml")
    with pytest.raises(ConfigError, match=r"there is no config .*absent.config\.toml$"):
        read_toml(tmp_path / "absent" / "config.toml")


def test_thousands_in_european_notation_are_no_whole_numbers() -> None:
    with pytest.raises(ConfigError, match=r"tournament\.pods must be a whole number, got 1\.000: write 1000, or 1 "):
        parse(parse_toml("[tournament]\npods = 1.000", "here"))
    assert parse(parse_toml("[tournament]\npods = 4.0", "here")).tournament.pods == 4


def test_numbers_as_text_are_refused_with_a_fix() -> None:
    with pytest.raises(ConfigError, match=r"must be a number, got '0,1', which has a decimal comma; write 0\.1"):
        parse({"environment": {"cost_bps": "0,1"}})
    with pytest.raises(ConfigError, match=r"seed must be a whole number, got '4', which has quotes; write 4$"):
        parse({"seed": "4"})


def test_dates_without_quotes_are_shown_as_written() -> None:
    with pytest.raises(ConfigError, match=r'train\.0 must be text in quotes, got 2010-01-04: write "2010-01-04"'):
        parse(parse_toml('[splits]\ntrain = [2010-01-04, "2015-12-31"]', "here"))
