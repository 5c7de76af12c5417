"""The password: how it is kept, compared, and guarded against guessing."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from argon2.profiles import CHEAPEST
from finrl_pod_app.cli.main import run
from finrl_pod_app.dashboard import launch, passwords
from finrl_pod_app.dashboard.passwords import LONGEST, Guard, Password, PasswordRefused

from finrl_pod.errors import InputError

RIGHT = "correct horse battery"


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes that take no time."""
    monkeypatch.setattr(passwords, "_hasher", lambda: PasswordHasher.from_parameters(CHEAPEST))


def test_a_guess_is_dear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    made = Password(tmp_path / "password")
    made.set(RIGHT)
    assert "$m=65536,t=3," in made.file.read_text()  # 64 MiB, three passes: RFC 9106, second recommended option
    assert made.matches(RIGHT)


@pytest.fixture
def password(tmp_path: Path) -> Password:
    made = Password(tmp_path / "a new folder" / "password")
    made.set(RIGHT)
    return made


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_it_is_kept_as_a_hash_that_only_its_owner_reads(password: Password) -> None:
    text = password.file.read_text()
    assert text.startswith("$argon2id$")
    assert RIGHT not in text
    assert stat.S_IMODE(password.file.stat().st_mode) == 0o600
    first = text
    password.set(RIGHT)
    assert password.file.read_text() != first  # salted


@pytest.mark.parametrize("wrong", ["", RIGHT + " ", RIGHT[:-1], RIGHT.upper(), "x" * (LONGEST + 1), "\0"])
def test_only_the_password_matches(password: Password, wrong: str) -> None:
    assert password.matches(RIGHT)
    assert not password.matches(wrong)


@pytest.mark.parametrize("text", ["", "short", "x" * (LONGEST + 1)])
def test_a_short_or_endless_one_is_refused(tmp_path: Path, text: str) -> None:
    made = Password(tmp_path / "password")
    with pytest.raises(InputError, match="8 to 256 characters"):
        made.set(text)
    assert not made.is_set


def test_without_one_nothing_is_let_through(tmp_path: Path) -> None:
    with pytest.raises(PasswordRefused, match="set-password"):
        Password(tmp_path / "none").matches("")


def test_a_file_that_others_may_read_or_that_is_damaged_is_refused(password: Password) -> None:
    password.file.chmod(0o644)
    with pytest.raises(PasswordRefused, match="chmod 600"):
        password.matches(RIGHT)
    password.file.chmod(0o600)
    password.file.write_text("no hash")
    with pytest.raises(PasswordRefused, match="holds no password"):
        password.matches("no hash")


def test_after_a_wrong_one_everybody_waits_longer_and_longer(password: Password) -> None:
    clock = Clock()
    guard = Guard(password, clock)
    for wait in (1, 2, 4, 8):
        with pytest.raises(PasswordRefused, match=f"wrong password: the next try is taken in {wait} s"):
            guard.check("wrong password")
        clock.now += wait - 0.01
        with pytest.raises(PasswordRefused, match="too soon"):
            guard.check(RIGHT)  # not even the right one
        clock.now += 0.02
    guard.check(RIGHT)
    with pytest.raises(PasswordRefused, match="in 1 s"):
        guard.check("wrong password")


def guess_wrong(guard: Guard, clock: Clock, times: int) -> None:
    """So many wrong guesses, each after the longest wait."""
    for _ in range(times):
        clock.now += 301
        with pytest.raises(PasswordRefused, match="wrong password"):
            guard.check("wrong password")


def test_the_wait_has_an_end(password: Password) -> None:
    clock = Clock()
    guard = Guard(password, clock)
    guess_wrong(guard, clock, 12)
    clock.now += 301
    guard.check(RIGHT)


def test_the_wait_never_ends_by_too_many_guesses(password: Password, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Password, "matches", lambda *_: False)
    clock = Clock()
    guard = Guard(password, clock)
    guess_wrong(guard, clock, 1_200)
    with pytest.raises(PasswordRefused, match="too soon"):
        guard.check("wrong password")


def test_many_sessions_at_once_get_one_try_together(password: Password, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    true = Password.matches

    def matches(self: Password, text: str) -> bool:
        tried.append(text)
        return true(self, text)

    monkeypatch.setattr(Password, "matches", matches)
    guard = Guard(password, Clock())

    def guess(n: int) -> bool:
        with pytest.raises(PasswordRefused):
            guard.check(f"guess number {n}")
        return True

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(guess, range(64)))
    assert len(tried) == 1


def test_the_command_sets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import io

    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path))
    with pytest.raises(InputError, match="set-password"):
        launch.check_address("0.0.0.0")
    monkeypatch.setattr("sys.stdin", io.StringIO("too few\n"))
    assert run(["dashboard", "set-password", "--stdin"]) == 2
    assert "8 to 256 characters" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{RIGHT}\n"))
    assert run(["dashboard", "set-password", "--stdin"]) == 0
    told = capsys.readouterr()
    assert RIGHT not in told.out + told.err
    assert Password().matches(RIGHT)
    launch.check_address("0.0.0.0")  # now it may
