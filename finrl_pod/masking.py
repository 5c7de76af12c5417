"""Removes secrets from text, in each form in which messages of other programs repeat them.

A secret is found as it is, URL-encoded, escaped as in JSON, HTML or Python, in hexadecimal, in base64 at any offset of
a longer text, split over lines, and cut off after its first half; so is each piece of one with white space in it.
"""

from __future__ import annotations

import base64
import functools
import html
import os
import re
from collections.abc import Iterable, Mapping
from html.entities import codepoint2name
from typing import Any
from urllib.parse import unquote, urlsplit

from finrl_pod.errors import SetupError

MASK = "***"
MIN_LENGTH = 8  # of a secret of the environment: a shorter value would mask ordinary text
MIN_PIECE = 4  # length of a part between white space
MAX_DEPTH = 32  # of nested groups of an expression
URL_VARIABLES = ("FINRL_POD_ALERT_URLS", "FINRL_POD_PING_URL")  # whose passwords and tokens are secrets too
_SECRET_NAME = re.compile(r"(?:^|_)(?:KEY|SECRET|TOKEN|PASSWORD|PASSWD)(?:_ID)?$", re.IGNORECASE)
_BREAK = r"(?:\s|\\+(?:[nrt]|u000[9aAdD]|x0[9aAdD])|%(?:25)*0[9aAdD]|&#(?:0*(?:9|10|13)|[xX]0*[9aAdD]);|<br\s*/?>)*"
_IGNORED = re.compile(r"\\+[nrt]|<br\s*/?>|\s|\\", re.IGNORECASE)
_ESCAPE = re.compile(r"\\+(?:u00|x)([0-9a-fA-F]{2})")
_URL_SAFE = str.maketrans("-_", "+/")


def read_secrets(*names: str, owner: str) -> tuple[str, ...]:
    """Return secrets of the environment without white space around them. owner: who needs them, for the message.

    Raises SetupError, which never shows a value, if one is missing, empty, or not of visible ASCII characters only.
    """
    secrets = {name: os.environ.get(name, "").strip() for name in names}
    missing = [name for name, secret in secrets.items() if not secret]
    if missing:
        plural, them = ("s", "them") if len(missing) > 1 else ("", "it")
        raise SetupError(f"environment variable{plural} {' and '.join(missing)} not set; set {them} to {owner}")
    for name, secret in secrets.items():
        if not all("!" <= character <= "~" for character in secret):
            raise SetupError(
                f"environment variable {name} has a space, a line break or another character that no key has; set it "
                f"to {owner}"
            )
    return tuple(secrets.values())


def environment_secrets(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the secret values of the environment: of variables named as keys or tokens, and of alert URLs."""
    values: set[str] = set()
    for name, value in environment.items():
        if name in URL_VARIABLES:
            values.update(secret_part for url in value.split() for secret_part in _url_secrets(url))
        elif _SECRET_NAME.search(name):
            values.add(value.strip())
    return tuple(sorted(value for value in values if len(value) >= MIN_LENGTH))


def environment_mask(environment: Mapping[str, str] = os.environ) -> SecretMask:
    """Return the mask of the secrets of the environment."""
    return _mask_of(environment_secrets(environment))


class SecretMask:
    """Replaces every secret by `MASK`. Quick for text without any."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in (secret, *_pieces(secret)) if form.strip()}
        self._secrets = tuple(_Secret(form) for form in sorted(forms, key=len, reverse=True))
        self._shortest = min((secret.shortest for secret in self._secrets), default=0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._secrets)} secrets)"

    def text(self, text: str) -> str:
        """Return the text without secrets; `MASK` alone if one is in it in a form that cannot be cut out."""
        if not text.isascii():  # a lone surrogate can be neither stored nor sent
            text = text.encode(errors="backslashreplace").decode()
        present = self._present(text)
        masked_text = text
        for secret in present:
            masked_text = secret.pattern.sub(MASK, masked_text)
        return MASK if present and self._present(masked_text) else masked_text

    def value(self, value: Any) -> Any:
        """Return a plain value without secrets in its texts; other objects become masked text."""
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return self.text(str(value))

    def _present(self, text: str) -> list[_Secret]:
        """Return the secrets that seem to be in a text, the longest first."""
        if not self._secrets or len(text) < self._shortest:
            return []
        plain_text = _plain_text(text)
        forms = (plain_text, plain_text.translate(_URL_SAFE), plain_text.lower())
        return [secret for secret in self._secrets if any(trace in forms[form] for form, trace in secret.traces)]


class _Secret:
    """The forms of one secret. shortest: length of the shortest text that one is in."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self.traces = _traces(secret)
        self.shortest = min(len(trace) for _, trace in self.traces)

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(_patterns(self._secret)))


@functools.lru_cache(maxsize=8)
def _mask_of(secrets: tuple[str, ...]) -> SecretMask:
    return SecretMask(secrets)


def _url_secrets(url: str) -> list[str]:
    """Return a URL and its user, password, path segments and query values that look like tokens."""
    try:
        url_parts = urlsplit(url)
        credentials = [url_parts.username or "", url_parts.password or ""]
    except ValueError:
        return [url]
    values = [*url_parts.path.split("/"), *(pair.partition("=")[2] for pair in url_parts.query.split("&"))]
    if "." not in (url_parts.hostname or "."):  # services of apprise have a token in its place
        values.append(url_parts.netloc.rpartition("@")[2].partition(":")[0])
    return [url, *credentials, *(value for value in values if any(c.isdigit() for c in value))]


# ---------------------------------------------------------------------- forms of a secret


def _pieces(secret: str) -> list[str]:
    return [piece for piece in secret.split() if len(piece) >= MIN_PIECE]


def _traces(secret: str) -> list[tuple[int, str]]:
    """Return what shows that a secret may occur: (0 in plain text, 1 in base64, 2 in lower case, text)."""
    plain_text = _plain_text(secret)
    traces = [(0, plain_text[: _identifying_length(plain_text)])]
    if len(secret) >= MIN_LENGTH:
        traces += [(1, core[: _identifying_length(core)]) for core in _base64_cores(secret)]
        digits = secret.encode().hex()
        traces.append((2, digits[: _identifying_length(digits)]))
    return traces


def _patterns(secret: str) -> list[str]:
    """Return the regular expressions of all forms of a secret."""
    patterns = [_sequence([_character(c) for c in secret if not c.isspace()])]  # it may be between all characters
    if len(secret) >= MIN_LENGTH:
        for core in _base64_cores(secret):
            patterns.append(_sequence([_base64_character(c) for c in core]) + r"(?:[A-Za-z0-9+/_-]?=+)?")
        patterns.append(_sequence([_any_case(c) for c in secret.encode().hex()]))
    return patterns


def _sequence(characters: list[str]) -> str:
    """Return the expression of characters in a row with line breaks between them; the second half may be missing."""
    count = _identifying_length("x" * len(characters))
    optional_characters = [f"{_BREAK}{character}" for character in characters[count:]]
    step = max(len(optional_characters) // MAX_DEPTH, 1)
    tail = ""
    for start in reversed(range(0, len(optional_characters), step)):
        tail = f"(?:{''.join(optional_characters[start : start + step])}{tail})?"
    return _BREAK.join(characters[:count]) + tail


def _identifying_length(text: str) -> int:
    """Return how many first characters of a form identify it."""
    return len(text) if len(text) < 2 * MIN_LENGTH else len(text) // 2


def _character(character: str) -> str:
    """Return the expression of one character of a secret, also in its escaped forms."""
    code = ord(character)
    octets = "".join(rf"%(?:25)*{_any_case(f'{byte:02x}')}" for byte in character.encode())
    forms = [re.escape(character), octets]
    if not character.isalnum():
        entity = rf"|{codepoint2name[code]}" if code in codepoint2name else ""
        digits = _any_case(f"{code:x}")
        forms += [rf"\\+(?:u0*{digits}|x{digits})", rf"&(?:#0*{code}|#[xX]0*{digits}{entity});", rf"\\+{forms[0]}"]
    return f"(?:{'|'.join(forms)})"


def _base64_character(character: str) -> str:
    if character.isalnum():
        return character
    return f"(?:{_character(character)}|{'-' if character == '+' else '_'})"


def _any_case(digits: str) -> str:
    return "".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in digits)


def _base64_cores(secret: str) -> list[str]:
    """Return the base64 digits that a secret alone determines, at each of the three offsets in a longer text."""
    octets = secret.encode()
    cores = []
    for offset in range(3):
        digits = base64.b64encode(b"\0" * offset + octets + b"\0\0").decode()
        cores.append(digits[-(-offset * 8 // 6) : (offset + len(octets)) * 8 // 6])
    return cores


def _plain_text(text: str) -> str:
    """Return a text without escapes, white space and line breaks."""
    if "&" in text:
        text = html.unescape(text)
    for _ in range(3):  # encoded more than once
        if "%" not in text:
            break
        text = unquote(text)
    if "\\" in text:
        text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
    return _IGNORED.sub("", text)
