"""The password: storage, comparison, and rate limit of guesses."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from argon2.profiles import CHEAPEST
from finrl_pod_app.cli.main import run
from finrl_pod_app.dashboard import passwords
from finrl_pod_app.dashboard.passwords import MAX_LENGTH, MAX_WRONG, WINDOW, Password, PasswordGuard, PasswordRefused
from finrl_pod_app.dashboard.serving import server

from finrl_pod.errors import InputError

PASSWORD = "correct horse battery"
ADDRESS = "192.0.2.7"


@pytest.fixture(autouse=True)
def _cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use fast hash parameters."""
    monkeypatch.setattr(passwords, "_hasher", lambda: PasswordHasher.from_parameters(CHEAPEST))


@pytest.mark.slow
def test_hash_parameters_are_expensive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    password = Password(tmp_path / "password")
    password.set(PASSWORD)
    assert "$m=65536,t=3," in password.file.read_text()  # 64 MiB, three passes: RFC 9106, second recommended option
    assert password.matches(PASSWORD)


@pytest.fixture
def password(tmp_path: Path) -> Password:
    password = Password(tmp_path / "a new folder" / "password")
    password.set(PASSWORD)
    return password


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_stored_as_a_salted_hash_with_mode_600(password: Password) -> None:
    text = password.file.read_text()
    assert text.startswith("$argon2id$")
    assert PASSWORD not in text
    assert stat.S_IMODE(password.file.stat().st_mode) == 0o600
    first = text
    password.set(PASSWORD)
    assert password.file.read_text() != first  # salted


@pytest.mark.parametrize("wrong", ["", PASSWORD + " ", PASSWORD[:-1], PASSWORD.upper(), "x" * (MAX_LENGTH + 1), "\0"])
def test_only_the_password_matches(password: Password, wrong: str) -> None:
    assert password.matches(PASSWORD)
    assert not password.matches(wrong)


@pytest.mark.parametrize("text", ["", "short", "x" * (MAX_LENGTH + 1)])
def test_invalid_lengths_are_refused(tmp_path: Path, text: str) -> None:
    password = Password(tmp_path / "password")
    with pytest.raises(InputError, match="8 to 256 characters"):
        password.set(text)
    assert not password.is_set


def test_missing_password_refuses(tmp_path: Path) -> None:
    with pytest.raises(PasswordRefused, match="set-password"):
        Password(tmp_path / "none").matches("")


def test_public_or_damaged_file_refuses(password: Password) -> None:
    password.file.chmod(0o644)
    with pytest.raises(PasswordRefused, match="chmod 600"):
        password.matches(PASSWORD)
    password.file.chmod(0o600)
    password.file.write_text("no hash")
    with pytest.raises(PasswordRefused, match="not a password hash"):
        password.matches("no hash")


def test_wait_doubles_after_wrong_passwords(password: Password) -> None:
    clock = Clock()
    guard = PasswordGuard(password, clock)
    for wait in (1, 2, 4, 8):
        with pytest.raises(PasswordRefused, match=f"wrong password: try again in {wait} s"):
            guard.check("wrong password", ADDRESS)
        clock.now += wait - 0.01
        with pytest.raises(PasswordRefused, match="too soon"):
            guard.check(PASSWORD, ADDRESS)  # refused even with the correct password
        clock.now += 0.02
    guard.check(PASSWORD, ADDRESS)
    with pytest.raises(PasswordRefused, match="in 1 s"):
        guard.check("wrong password", ADDRESS)


def guess_wrong(guard: PasswordGuard, clock: Clock, times: int) -> None:
    """Make wrong guesses, each after the longest wait."""
    for _ in range(times):
        clock.now += 301
        with pytest.raises(PasswordRefused, match="wrong password"):
            guard.check("wrong password", ADDRESS)


def test_wait_is_limited(password: Password) -> None:
    clock = Clock()
    guard = PasswordGuard(password, clock)
    guess_wrong(guard, clock, 12)
    clock.now += 301
    guard.check(PASSWORD, ADDRESS)


def test_wait_does_not_overflow_after_many_guesses(password: Password, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Password, "matches", lambda *_: False)
    clock = Clock()
    guard = PasswordGuard(password, clock)
    guess_wrong(guard, clock, 1_200)
    with pytest.raises(PasswordRefused, match="too soon"):
        guard.check("wrong password", ADDRESS)


def test_parallel_guesses_get_one_try(password: Password, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[str] = []
    original = Password.matches

    def matches(self: Password, text: str) -> bool:
        attempts.append(text)
        return original(self, text)

    monkeypatch.setattr(Password, "matches", matches)
    guard = PasswordGuard(password, Clock())

    def guess(n: int) -> bool:
        with pytest.raises(PasswordRefused):
            guard.check(f"guess number {n}", ADDRESS)
        return True

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(guess, range(64)))
    assert len(attempts) == 1


def test_wrong_passwords_of_one_visitor_do_not_block_others(password: Password) -> None:
    guard = PasswordGuard(password, Clock())
    for address in (ADDRESS, "2001:db8::1"):
        with pytest.raises(PasswordRefused, match="wrong password"):
            guard.check("wrong password", address)
    for address in (ADDRESS, "2001:db8::2"):  # of the same network
        with pytest.raises(PasswordRefused, match="too soon"):
            guard.check(PASSWORD, address)
    guard.check(PASSWORD, "192.0.2.8")
    guard.check(PASSWORD, "2001:db8:0:1::1")


def test_wrong_passwords_of_all_visitors_have_a_ceiling(password: Password, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    guard = PasswordGuard(password, clock)
    with monkeypatch.context() as patch:
        patch.setattr(Password, "matches", lambda *_: False)
        for number in range(MAX_WRONG):
            clock.now += 1
            with pytest.raises(PasswordRefused, match="wrong password"):
                guard.check("wrong password", f"192.0.2.{number}")
    with pytest.raises(PasswordRefused, match=f"from all addresses: wait {WINDOW - MAX_WRONG + 1:.0f} s"):
        guard.check(PASSWORD, "198.51.100.1")
    clock.now = 1 + WINDOW
    guard.check(PASSWORD, "198.51.100.1")


def test_set_password_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import io

    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path))
    with pytest.raises(InputError, match="set-password"):
        server.check_address("0.0.0.0")
    monkeypatch.setattr("sys.stdin", io.StringIO("too few\n"))
    assert run(["dashboard", "set-password", "--stdin"]) == 2
    assert "8 to 256 characters" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSWORD}\n"))
    assert run(["dashboard", "set-password", "--stdin"]) == 0
    captured = capsys.readouterr()
    assert PASSWORD not in captured.out + captured.err
    assert Password().matches(PASSWORD)
    server.check_address("0.0.0.0")
