"""Secrets are removed from text in each form in which other programs repeat them."""

from __future__ import annotations

import base64
import html
import json
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.masking import MASK, MIN_PIECE, SecretMask, environment_mask, environment_secrets

SECRET = 'acceptance/Secret+0123456789&"abcdef'

FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "URL-encoded": lambda s: urllib.parse.quote(s, safe=""),
    "path-encoded": urllib.parse.quote,
    "lower-case escapes": lambda s: urllib.parse.quote(s, safe="").replace("%2F", "%2f").replace("%2B", "%2b"),
    "encoded twice": lambda s: urllib.parse.quote(urllib.parse.quote(s, safe=""), safe=""),
    "every octet encoded": lambda s: "".join(f"%{byte:02X}" for byte in s.encode()),
    "JSON": lambda s: json.dumps(s)[1:-1],
    "JSON in JSON": lambda s: json.dumps(json.dumps(s))[1:-1],
    "JSON with escaped slashes": lambda s: json.dumps(s).replace("/", "\\/"),
    "repr": lambda s: repr(s + "'"),
    "HTML": html.escape,
    "base64": lambda s: base64.b64encode(s.encode()).decode(),
    "base64 in a URL": lambda s: base64.urlsafe_b64encode(s.encode()).decode().rstrip("="),
    "basic authentication": lambda s: base64.b64encode(f"user:{s}".encode()).decode(),
    "base64 at the third offset": lambda s: base64.b64encode(f"ab{s}cdefg".encode()).decode(),
    "base64 over lines": lambda s: base64.encodebytes((s * 3).encode()).decode(),
    "hexadecimal": lambda s: s.encode().hex(),
    "upper-case hexadecimal": lambda s: s.encode().hex().upper(),
    "two lines": lambda s: f"{s[:11]}\n{s[11:]}",
    "indented lines": lambda s: "\r\n    ".join(s[i : i + 5] for i in range(0, len(s), 5)),
    "escaped line breaks": lambda s: json.dumps(json.dumps(f"{s[:11]}\n{s[11:]}")),
    "lines of a URL": lambda s: urllib.parse.quote(f"{s[:11]}\n{s[11:]}", safe=""),
    "lines of HTML": lambda s: f"{s[:11]}<br>{s[11:]}",
    "cut": lambda s: s[: len(s) * 2 // 3],
}  # fmt: skip


def decoded(text: str) -> str:
    """The text as a reader may restore it: escapes decoded, white space removed."""
    text = html.unescape(urllib.parse.unquote(urllib.parse.unquote(text)))
    return "".join(text.replace("\\\\", "\\").replace("\\n", "").replace("\\", "").split())


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_secret_is_masked_in_each_form(form: Callable[[str], str]) -> None:
    mask, written = SecretMask([SECRET]), form(SECRET)
    masked = mask.text(f"the broker said: {written}; try again")
    assert masked.startswith("the broker said: ")
    assert masked.endswith("; try again")
    assert MASK in masked
    assert written[4:20] not in masked
    assert SECRET[8:16] not in decoded(masked)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_masked_json_stays_json(form: Callable[[str], str]) -> None:
    masked = SecretMask([SECRET]).text(json.dumps({"detail": form(SECRET), "other": [1, "kept"]}))
    assert json.loads(masked)["other"] == [1, "kept"]
    assert MASK in json.loads(masked)["detail"]


def test_lone_surrogates_are_escaped() -> None:
    assert SecretMask([]).text("é \ud800") == "é \\ud800"


def test_text_without_a_secret_is_unchanged() -> None:
    text = (
        json.dumps({"closes": {f"S{n}": str(100 + n / 7) for n in range(1000)}}) + "\n\\n%41&amp;" + "YWNjZXB0YW5jZQ=="
    )
    assert SecretMask([SECRET]).text(text) is text
    assert SecretMask([]).text(SECRET) == SECRET


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40), st.sampled_from(list(FORMS))
)
def test_any_printable_secret_is_masked(secret: str, form: str) -> None:
    written = FORMS[form](secret)
    if form == "cut" and len(secret) < 16:
        return
    assert written not in SecretMask([secret]).text(f"<{written}>")


@pytest.mark.parametrize("tail", ["abc", "abcdefg", "abcdefghij", "abcdefghij" * 4])
@pytest.mark.parametrize("form", [str, repr, json.dumps, FORMS["URL-encoded"], FORMS["base64"]])
def test_each_piece_of_a_secret_of_several_lines_is_masked(form: Callable[[str], str], tail: str) -> None:
    secret = f"SuperSecretValue1234567890\n{tail}"
    for mask in (SecretMask([secret]), environment_mask({"APCA_API_SECRET_KEY": secret})):
        written = form(secret)
        expected_text = written.replace(written.strip("'\""), MASK)
        assert mask.text(f"header value: {written}; try again") == f"header value: {expected_text}; try again"
        if len(tail) >= MIN_PIECE:
            assert mask.text(f"line 2: {tail}; try again") == f"line 2: {MASK}; try again"


def test_values_of_all_kinds_are_masked() -> None:
    masked = SecretMask([SECRET]).value({SECRET: [SECRET, (1, None, 2.5, True)], "error": ValueError(SECRET)})
    assert masked == {MASK: [MASK, [1, None, 2.5, True]], "error": MASK}
    assert SECRET not in repr(SecretMask([SECRET]))


def test_secrets_of_the_environment() -> None:
    environment = {
        "APCA_API_KEY_ID": "PKABCDEF", "APCA_API_SECRET_KEY": "s3cr3tvalue", "APCA_API_BASE_URL": "https://example.org",
        "FINRL_POD_WEBHOOK_SECRET": "hook", "VENDOR_API_KEY": "vendor-12345", "AWS_SECRET_ACCESS_KEY": "aws-12345678",
        "FINRL_POD_ALERT_URLS": "mailto://me:pass-word@example.org tgram://123456789:ABCdef/98765432",
        "FINRL_POD_PING_URL": "https://example.org/ping/0b5f-77aa-1234", "RAY_AUTH_TOKEN_PATH": "/home/someone/token",
    }  # fmt: skip
    found = environment_secrets(environment)
    assert {
        "PKABCDEF",
        "s3cr3tvalue",
        "vendor-12345",
        "aws-12345678",
        "pass-word",
        "98765432",
        "0b5f-77aa-1234",
    } <= set(found)
    assert not {"hook", "https://example.org", "/home/someone/token", "example.org"} & set(found)
    mask = environment_mask(environment)
    assert (
        mask.text("webhook of example.org: POST /98765432/send refused")
        == f"webhook of example.org: POST /{MASK}/send refused"
    )
    assert environment_mask(environment) is mask
