"""TOML files and types of settings: what is refused, and the sentence for it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from finrl_pod.errors import ConfigError
from finrl_pod.paper import settings as paper
from finrl_pod.settings.algorithm_registry import ALGORITHMS
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import RunConfig, TournamentConfig, load, parse
from finrl_pod.settings.toml import build_record, parse_toml, read_toml


def numbers(record: type[Any], place: str = "") -> list[tuple[str, str]]:
    """Dotted name and type of every setting that is a number, in all sections."""
    found = []
    for name, hint in get_type_hints(record).items():
        if dataclasses.is_dataclass(hint) and place == "" and name != "agent":
            found += numbers(hint, f"{name}.")  # type: ignore[arg-type]
        elif hint in (int, float):
            found.append((f"{place}{name}", hint.__name__))
    return found


NUMBERS = [("run", *each) for each in numbers(RunConfig)] + [("paper", *each) for each in numbers(paper.PaperConfig)]


@pytest.mark.parametrize(("kind", "name", "hint"), NUMBERS)
@pytest.mark.parametrize("value", [True, "4"])
def test_booleans_and_texts_are_no_numbers(kind: str, name: str, hint: str, value: object) -> None:
    section, _, key = name.rpartition(".")
    values: dict[str, Any] = {section: {key: value}} if section else {key: value}
    wanted = "a whole number" if hint == "int" else "a number"
    shown = "true" if value is True else "'4'"
    with pytest.raises(ConfigError, match=f"{name} must be {wanted}, got {shown}"):
        parse(values) if kind == "run" else paper.parse({"symbols": ["A"], "strategy": "equal_weight", **values})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_integers_of_agents_are_no_booleans(algorithm: str) -> None:
    record = ALGORITHMS[algorithm].config_class
    for name, hint in get_type_hints(record).items():
        if hint is int:
            with pytest.raises(ConfigError, match=f"agent.{name} must be a whole number, got true"):
                parse({"agent": {"algorithm": algorithm, name: True}})


@dataclasses.dataclass(frozen=True)
class Inner:
    pair: tuple[int, float] = (1, 2.0)


@dataclasses.dataclass(frozen=True)
class Sample:
    count: int = 1
    flag: bool = False
    word: str = ""
    many: tuple[int, ...] = ()
    inner: Inner = dataclasses.field(default_factory=Inner)
    list_of_tables: tuple[Inner, ...] = ()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"flag": 1}, "flag must be true or false, got 1"),
        ({"flag": "yes"}, "flag must be true or false, got 'yes'"),
        ({"word": 1}, "word must be text in quotes, got 1"),
        ({"count": 1.5}, "count must be a whole number, got 1.5"),
        ({"count": float("nan")}, "count must be a whole number, got nan"),
        ({"many": [1, True]}, r"many\.1 must be a whole number, got true"),
        ({"many": 3}, "many must be a list, got 3"),
        ({"many": "a"}, r"many must be a list, got 'a': write \[\"a\"\]$"),
        ({"inner": {"pair": [True, 1.0]}}, r"inner\.pair\.0 must be a whole number"),
        ({"inner": {"pair": [1, False]}}, r"inner\.pair\.1 must be a number, got false"),
        ({"inner": 3}, "inner must be a section with settings, got 3"),
        ({"list_of_tables": [{"pair": ["a", 1]}]}, r"list_of_tables\.0\.pair\.0 must be a whole number, got 'a'"),
    ],
)
def test_wrong_types_are_one_sentence(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^here: {message}"):
        build_record(Sample, values, "here")


def test_settings_without_their_section_are_named_with_it() -> None:
    with pytest.raises(ConfigError, match=r"^a: cost_bps is a setting of \[environment\]; write it below a line \[env"):
        parse({"cost_bps": 5.0}, "a")
    with pytest.raises(ConfigError, match=r"^a: unknown key sead; did you mean seed\?"):
        parse({"sead": 5}, "a")


def test_long_lists_of_names_are_cut() -> None:
    with pytest.raises(ConfigError, match=r"unknown key agent\.zzz; known are algorithm, .* and \d+ more$"):
        parse({"agent": {"algorithm": "sac", "zzz": 1}})


def test_booleans_are_no_integers_beside_texts() -> None:
    with pytest.raises(ConfigError, match=r"mandate\.decide_every must be a whole number or text, got true"):
        parse({"mandate": {"decide_every": True}})


def test_right_types_are_kept() -> None:
    values = {"count": 2.0, "flag": True, "many": [1, 2], "inner": {"pair": [1, 2]}}
    built = build_record(Sample, values, "here")
    assert (built.count, built.flag, built.many, built.inner.pair) == (2, True, (1, 2), (1, 2.0))
    assert isinstance(built.count, int)


def test_records_made_in_python_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"^tournament\.pods must be a number, got true"):
        check_settings("tournament.", TournamentConfig(pods=True))


def test_configs_of_the_daemon_and_of_tournaments_are_distinguished() -> None:
    with pytest.raises(ConfigError, match=r"^a\.toml is the config of a tournament: it has \[agent\]\."):
        paper.parse({"seed": 1, "agent": {"algorithm": "ppo"}}, "a.toml")
    with pytest.raises(ConfigError, match=r"^b\.toml is the config of the paper-trading daemon: it has champion\."):
        parse({"champion": "main"}, "b.toml")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("seed = 1\n[environment]\ncost_bps = 0,1\n", 3),
        ("seed = 1\nseed = 2\n", 2),
        ("[gate]\n[data]\n[gate]\n", 3),
        ("data = sample\n", 1),
        ("hello\n", 1),
    ],
)
def test_text_that_is_not_toml_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(ConfigError, match=rf"^here is not TOML: .*\(at line {line}, column \d+\)$"):
        parse_toml(text, "here")


def test_windows_line_endings_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "windows.toml"
    path.write_bytes(b"\xef\xbb\xbfseed = 3\r\n[environment]\r\ncost_bps = 2.5\r\n")
    assert (load(path).seed, load(path).environment.cost_bps) == (3, 2.5)
    path.write_bytes(b"seed = 3\r\n[environment]\r\ncost_bps = 2,5\r\n")
    with pytest.raises(ConfigError, match=r"windows\.toml is not TOML: .*\(at line 3, column 13\)$"):
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


def test_numbers_as_text_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"environment\.cost_bps must be a number, got '0,1'"):
        parse({"environment": {"cost_bps": "0,1"}})
    with pytest.raises(ConfigError, match="seed must be a whole number, got '4'"):
        parse({"seed": "4"})


def test_dates_without_quotes_are_shown_as_written() -> None:
    with pytest.raises(ConfigError, match=r'train\.0 must be text in quotes, got 2010-01-04: write "2010-01-04"'):
        parse(parse_toml('[splits]\ntrain = [2010-01-04, "2015-12-31"]', "here"))
