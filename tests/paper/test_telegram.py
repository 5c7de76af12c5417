"""Commands from Telegram against a local server of the Bot API's recorded shape."""

from __future__ import annotations

import json
import queue
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from finrl_pod.errors import ConfigError
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import RiskState, read_risk_state
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.monitoring import telegram
from finrl_pod.paper.monitoring.telegram import HELP, TelegramCommands
from finrl_pod.paper.settings import pack, parse, unpack

USER, STRANGER, SECRET_TOKEN = 4711, 666, "123456:token-of-the-bot"


class BotServer:
    """getUpdates and sendMessage as the Bot API answers them."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.sent: queue.Queue[dict[str, Any]] = queue.Queue()
        self.paths: list[str] = []
        self.raw: bytes | None = None  # answer in place of the next one
        self.number = 0
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.paths.append(self.path)
                if self.path.endswith("/getUpdates"):
                    time.sleep(0.02)
                    found = [u for u in outer.updates if not isinstance(u, dict) or u["update_id"] >= body["offset"]]
                    outer.updates = [u for u in outer.updates if isinstance(u, dict)]
                    result: Any = found
                else:
                    outer.sent.put(body)
                    result = {"message_id": 1, "chat": {"id": body["chat_id"], "type": "private"}, "text": body["text"]}
                answer = json.dumps({"ok": True, "result": result}).encode()
                if outer.raw is not None:
                    answer, outer.raw = outer.raw, None
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def say(self, text: str, user: int = USER, chat: int | None = None, kind: str = "private", age: float = 0) -> None:
        self.number += 1
        self.updates.append(
            {
                "update_id": self.number,
                "message": {
                    "message_id": self.number,
                    "from": {"id": user, "is_bot": False, "first_name": "Owner", "language_code": "en"},
                    "chat": {"id": user if chat is None else chat, "first_name": "Owner", "type": kind},
                    "date": int(time.time() - age),
                    "text": text,
                    "entities": [{"offset": 0, "length": len(text), "type": "bot_command"}],
                },
            }
        )

    def answer(self) -> str:
        return str(self.sent.get(timeout=20)["text"])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, event: str, **values: Any) -> None:
        self.lines.append(f"{event} {values}")


class Bot:
    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(telegram, "PAUSE", 0.05)
        self.server, self.store, self.log = BotServer(), store, Log()
        self.alerts: list[tuple[str, str, str]] = []
        self.commands = TelegramCommands(
            SECRET_TOKEN, (USER,), store, lambda: "active, 100,000.00", self.log,
            lambda *alert: self.alerts.append(alert), self.server.url, result_seconds=0.1,
        )  # fmt: skip

    def queued(self) -> list[tuple[str, str]]:
        return [(row.name, row.user) for row in self.store.rows(schema.commands)]


@pytest.fixture
def bot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bot]:
    store = Store.create_or_open(tmp_path / "journal.sqlite")
    bot = Bot(store, monkeypatch)
    yield bot
    bot.commands.close()
    bot.server.close()
    store.close()


def code_in(text: str) -> str:
    return re.findall(r"/confirm (\d{4})", text)[0]


def test_status_is_answered_at_once(bot: Bot) -> None:
    bot.server.say("/status")
    assert bot.server.answer() == "active, 100,000.00"
    bot.server.say("what?")
    assert bot.server.answer() == HELP
    assert bot.queued() == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["halt", "resume", "flatten"])
def test_commands_are_queued_after_their_confirmation(bot: Bot, name: str) -> None:
    bot.server.say(f"/{name}")
    text = bot.server.answer()
    assert bot.queued() == []
    bot.server.say(f"/confirm {code_in(text)}")
    assert bot.server.answer() == f"{name}: no result yet"
    assert bot.queued() == [(name, f"telegram:{USER}")]
    assert (read_risk_state(bot.store) is RiskState.HALTED) == (name == "halt")
    bot.server.say(f"/confirm {code_in(text)}")
    assert bot.server.answer() == "There is nothing to confirm."
    assert len(bot.queued()) == 1


def test_a_wrong_or_late_code_confirms_nothing(bot: Bot, monkeypatch: pytest.MonkeyPatch) -> None:
    bot.server.say("/flatten")
    code = code_in(bot.server.answer())
    bot.server.say(f"/confirm {(int(code) + 1) % 10_000:04d}")
    assert bot.server.answer() == "Wrong code; send /flatten again."
    bot.server.say(f"/confirm {code}")
    assert bot.server.answer() == "There is nothing to confirm."
    monkeypatch.setattr(telegram, "CONFIRM_SECONDS", -1.0)
    bot.server.say("/flatten")
    bot.server.say(f"/confirm {code_in(bot.server.answer())}")
    assert bot.server.answer() == "There is nothing to confirm."
    assert bot.queued() == []


def test_strangers_and_groups_get_no_answer(bot: Bot) -> None:
    bot.server.say("/halt", user=STRANGER)
    bot.server.say("/halt", chat=-100, kind="supergroup")
    bot.server.say("/status")
    assert bot.server.sent.get(timeout=20)["chat_id"] == USER
    assert bot.server.sent.empty()
    assert bot.queued() == []
    assert len(bot.log.lines) == 2


@pytest.mark.parametrize("age", [3600, -3600])
def test_old_command_is_answered_and_not_executed(bot: Bot, age: float) -> None:
    """Also one that is old only because the clock of the machine is wrong."""
    bot.server.say("/halt", age=age)
    assert re.match(r"Not executed: .* -?\d{4} s old", bot.server.answer())
    assert bot.queued() == []


def test_second_program_that_fetches_messages_is_alerted_once(bot: Bot) -> None:
    bot.server.status = 409
    while len(bot.server.paths) < 6:
        time.sleep(0.01)
    assert [(level, kind) for level, kind, _ in bot.alerts] == [("warning", "telegram")]


def test_malformed_answers_do_not_end_the_thread_nor_show_the_token(bot: Bot) -> None:
    bot.server.updates += [None, 7, {"update_id": 900}, {"update_id": 901, "message": {"text": 3}}]
    for raw in (b"<html>", b"[]", b'{"ok": false, "description": "Unauthorized"}', b"[" * 100_000):
        bot.server.raw = raw
        while bot.server.raw is not None:
            time.sleep(0.01)
    bot.server.number = 1000
    bot.server.say("/status")
    assert bot.server.answer() == "active, 100,000.00"
    assert not any(SECRET_TOKEN in line for line in bot.log.lines)
    assert all(path.startswith(f"/bot{SECRET_TOKEN}/") for path in bot.server.paths)


def test_an_empty_list_and_foreign_addresses_are_refused(tmp_path: Path) -> None:
    store = Store.create_or_open(tmp_path / "journal.sqlite")
    with pytest.raises(ConfigError, match="telegram_users is empty"):
        TelegramCommands("t", (), store, str, Log(), print, "http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="https"):
        TelegramCommands("t", (USER,), store, str, Log(), print, "http://example.org")


def test_users_are_numbers_and_recorded_with_the_settings() -> None:
    values = {"strategy": "index", "symbols": ["A"], "monitoring": {"telegram_users": [USER]}}
    settings = parse(values)
    assert settings.monitoring.telegram_users == (USER,)
    assert unpack(pack(settings)).monitoring.telegram_users == (USER,)
    with pytest.raises(ConfigError, match="telegram_users"):
        parse({**values, "monitoring": {"telegram_users": ["me"]}})
