"""Commands from Telegram: status, halt, resume and flatten, from users on a list and after a confirmation.

A background thread polls the Bot API (https://core.telegram.org/bots/api). Commands are queued in the journal like
commands of the command line. A confirmation is valid for a minute, for one command and one user, and not after a
restart.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finrl_pod.errors import ConfigError, FinrlPodError
from finrl_pod.paper.journal.commands import CommandName, read_result, submit_command
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.monitoring.alerts import RefusedRequest, check_address, send_request

TOKEN = "FINRL_POD_TELEGRAM_TOKEN"
API = "https://api.telegram.org"
POLL_SECONDS = 20  # of one long poll
REQUEST_SECONDS = 30.0  # of one request in total
PAUSE = 10.0  # seconds after a request that failed
CONFIRM_SECONDS = 60.0
MAX_AGE = 60.0  # seconds; older messages are not executed, since Telegram keeps unfetched ones for a day
CONFLICT = 409  # status of the Bot API while another program fetches the messages
RESULT_SECONDS = 30.0  # to wait for a command's result
COMMANDS = {name.value: name for name in (CommandName.HALT, CommandName.RESUME, CommandName.FLATTEN)}
HELP = "Commands: /status, and /halt, /resume, /flatten; these need a confirmation."


def check_users(users: Sequence[int]) -> None:
    """Raises ConfigError without users that may send commands."""
    if not users:
        raise ConfigError(
            f"{TOKEN} is set, but monitoring.telegram_users is empty: list the ids of the users who may send "
            "commands, or unset it"
        )


@dataclass(frozen=True)
class _Pending:
    """A command that waits for its code. until: monotonic time."""

    name: CommandName
    code: str
    until: float


class TelegramCommands:
    """Polls for messages and answers them from a background thread; failures are logged and never raised."""

    def __init__(
        self, token: str, users: Sequence[int], store: Store, status: Callable[[], str], log: Any,
        alert: Callable[[str, str, str], None], url: str = API, result_seconds: float = RESULT_SECONDS,
    ) -> None:  # fmt: skip
        """users: numeric ids that may send commands. status: text for /status. alert: called once if another program
        fetches the messages. Both are called from the thread.

        Raises ConfigError without users, or for an address that is neither https nor on this machine.
        """
        check_address(url, "the address of Telegram")
        check_users(users)
        self._base = f"{url.rstrip('/')}/bot{token}/"
        self._users = frozenset(users)
        self._store = store
        self._status = status
        self._log = log
        self._alert = alert
        self._conflict_alerted = False
        self._result_seconds = result_seconds
        self._pending: dict[int, _Pending] = {}
        self._offset = 0
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telegram", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; a poll in progress ends on its own."""
        self._stop_event.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        while not self._stop_event.is_set():
            try:
                updates = self._call("getUpdates", offset=self._offset, timeout=POLL_SECONDS)
                for update in updates if isinstance(updates, list) else ():
                    self._receive(update)
            except Exception as error:  # noqa: BLE001 - the service may fail in any way; its address has the token
                self._log.warning("telegram", reason=type(error).__name__)
                if isinstance(error, RefusedRequest) and error.status == CONFLICT and not self._conflict_alerted:
                    self._conflict_alerted = True
                    message = "another program fetches the messages of the Telegram bot, so commands may be lost"
                    self._alert("warning", "telegram", message)
                self._stop_event.wait(PAUSE)

    def _receive(self, update: Any) -> None:
        """Handle one update; a malformed one is skipped."""
        if not isinstance(update, Mapping) or type(update.get("update_id")) is not int:
            return
        self._offset = max(self._offset, update["update_id"] + 1)
        message = update.get("message")
        if not isinstance(message, Mapping):
            return
        sender = message.get("from")
        chat = message.get("chat")
        text = message.get("text")
        if not (isinstance(sender, Mapping) and isinstance(chat, Mapping) and isinstance(text, str)):
            return
        user = sender.get("id")
        sent = message.get("date")
        if user not in self._users or chat.get("type") != "private" or chat.get("id") != user:
            self._log.warning("telegram", reason="ignored a message of a user who is not in monitoring.telegram_users")
            return
        age = time.time() - sent if isinstance(sent, int | float) else float("nan")
        if abs(age) <= MAX_AGE:
            answer = self._answer(user, text)
        else:
            answer = (
                f"Not executed: by the clock of the daemon's machine the message is {age:.0f} s old. Send it again."
            )
        self._call("sendMessage", chat_id=user, text=answer)

    def _answer(self, user: int, text: str) -> str:
        words = text.strip().lower().removeprefix("/").split()
        name = words[0].split("@")[0] if words else ""
        try:
            if name == "status":
                return self._status()
            if name in COMMANDS:
                code = f"{secrets.randbelow(10_000):04d}"
                self._pending[user] = _Pending(COMMANDS[name], code, time.monotonic() + CONFIRM_SECONDS)
                return f"To {name}, send within a minute: /confirm {code}"
            if name == "confirm":
                return self._run_confirmed(user, words[1] if len(words) > 1 else "")
        except FinrlPodError as error:
            return f"failed: {error}"
        return HELP

    def _run_confirmed(self, user: int, code: str) -> str:
        pending = self._pending.pop(user, None)  # a wrong code ends it too
        if pending is None or time.monotonic() > pending.until:
            return "There is nothing to confirm."
        if not secrets.compare_digest(code.encode(), pending.code.encode()):
            return f"Wrong code; send /{pending.name.value} again."
        number = submit_command(self._store, pending.name, user=f"telegram:{user}", address="telegram")
        end = time.monotonic() + self._result_seconds
        while (result := read_result(self._store, number)) is None and time.monotonic() < end:
            if self._stop_event.wait(0.1):
                break
        if result is None:
            return f"{pending.name.value}: no result yet"
        return f"{pending.name.value}: {'refused: ' if result.refused else ''}{result.message}"

    def _call(self, method: str, **values: Any) -> Any:
        """Return `result` of a method of the Bot API. Raises any error of the connection, or ValueError."""
        body = json.dumps(values).encode()
        headers = {"Content-Type": "application/json"}
        answer = send_request(
            "POST", self._base + method, REQUEST_SECONDS, body=body, headers=headers, reads_answer=True
        )
        document = json.loads(answer)
        if not isinstance(document, Mapping) or document.get("ok") is not True:
            raise ValueError("the Bot API refused the request")
        return document.get("result")
