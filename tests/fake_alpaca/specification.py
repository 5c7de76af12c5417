"""Alpaca's own OpenAPI files, out of the installed package alpaca-mcp-server, as validators of answers."""

from __future__ import annotations

import json
import uuid
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing
import referencing.jsonschema

_URI = "urn:alpaca"


@cache
def _document(name: str) -> dict[str, Any]:
    spec = find_spec("alpaca_mcp_server")
    if spec is None or spec.origin is None:
        pytest.fail("alpaca-mcp-server is not installed: make setup installs it (without its dependencies)")
    text = (Path(spec.origin).parent / "specs" / f"{name}-api.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def _checker() -> jsonschema.FormatChecker:
    checker = jsonschema.FormatChecker(formats=())

    def strict(name: str, parse: Any, errors: tuple[type[Exception], ...]) -> None:
        def check(value: object) -> bool:
            if isinstance(value, str):
                parse(value)
            return True

        checker.checks(name, raises=errors)(check)

    strict("uuid", uuid.UUID, (ValueError,))
    strict("date", date.fromisoformat, (ValueError,))
    strict("date-time", datetime.fromisoformat, (ValueError,))
    strict("decimal", Decimal, (InvalidOperation,))
    return checker


def check(name: str, method: str, path: str, status: int, answer: Any) -> None:
    """Raises jsonschema.ValidationError unless an answer has the form that Alpaca's file gives for it.

    name: "trading" or "market-data". path: as the file writes it, with {placeholders}.
    """
    responses = _document(name)["paths"][path][method.lower()]["responses"]
    assert "schema" in responses[str(status)]["content"]["application/json"]
    place = ("paths", _escaped(path), method.lower(), "responses", str(status))
    _validate(name, f"{_URI}#/{'/'.join(place)}/content/{_escaped('application/json')}/schema", answer)


def _validate(name: str, pointer: str, value: Any) -> None:
    document = _document(name)
    resource = referencing.Resource.from_contents(document, default_specification=referencing.jsonschema.DRAFT202012)
    registry: Any = referencing.Registry().with_resource(_URI, resource)
    jsonschema.Draft202012Validator({"$ref": pointer}, registry=registry, format_checker=_checker()).validate(value)


def check_schema(name: str, schema: str, value: Any) -> None:
    """The same for one of the file's named schemas."""
    _validate(name, f"{_URI}#/components/schemas/{schema}", value)


def properties(name: str, schema: str) -> set[str]:
    """The fields that a schema of the file knows."""
    return set(_document(name)["components"]["schemas"][schema]["properties"])


def _escaped(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1").replace("{", "%7B").replace("}", "%7D")
