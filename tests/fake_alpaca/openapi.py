"""Validation of responses against Alpaca's own OpenAPI files, from the installed package alpaca-mcp-server."""

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
def document(name: str) -> dict[str, Any]:
    """An OpenAPI file: "trading" or "market-data"."""
    spec = find_spec("alpaca_mcp_server")
    if spec is None or spec.origin is None:
        pytest.fail("alpaca-mcp-server is not installed; run `make setup` (which installs it without dependencies)")
    text = (Path(spec.origin).parent / "specs" / f"{name}-api.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def _format_checker() -> jsonschema.FormatChecker:
    checker = jsonschema.FormatChecker(formats=())

    def add_format(name: str, parse: Any, errors: tuple[type[Exception], ...]) -> None:
        def check(value: object) -> bool:
            if isinstance(value, str):
                parse(value)
            return True

        checker.checks(name, raises=errors)(check)

    add_format("uuid", uuid.UUID, (ValueError,))
    add_format("date", date.fromisoformat, (ValueError,))
    add_format("date-time", datetime.fromisoformat, (ValueError,))
    add_format("decimal", Decimal, (InvalidOperation,))
    return checker


def check(name: str, method: str, path: str, status: int, response: Any) -> None:
    """Validate the response to a request. Raises jsonschema.ValidationError if it does not match the schema.

    name: "trading" or "market-data". path: as in the file, with {placeholders}.
    """
    responses = document(name)["paths"][path][method.lower()]["responses"]
    assert "schema" in responses[str(status)]["content"]["application/json"]
    place = ("paths", _escaped(path), method.lower(), "responses", str(status))
    _validate(name, f"{_URI}#/{'/'.join(place)}/content/{_escaped('application/json')}/schema", response)


def _validate(name: str, pointer: str, value: Any) -> None:
    whole = document(name)
    resource = referencing.Resource.from_contents(whole, default_specification=referencing.jsonschema.DRAFT202012)
    registry: Any = referencing.Registry().with_resource(_URI, resource)
    jsonschema.Draft202012Validator({"$ref": pointer}, registry=registry, format_checker=_format_checker()).validate(
        value
    )


def check_schema(name: str, schema: str, value: Any) -> None:
    """Validate a value against a named schema of the file. Raises jsonschema.ValidationError if it does not match."""
    _validate(name, f"{_URI}#/components/schemas/{schema}", value)


def properties(name: str, schema: str) -> set[str]:
    """Names of the fields of a schema of the file."""
    return set(document(name)["components"]["schemas"][schema]["properties"])


def _escaped(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1").replace("{", "%7B").replace("}", "%7D")
