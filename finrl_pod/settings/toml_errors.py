"""Sentences for text that is not TOML, and for values in another notation: the line, the key, the value and the fix."""

from __future__ import annotations

import re
from datetime import date

LONGEST_VALUE = 60  # characters of a line that are quoted
NO_ITEM = "has an item that is no value; put text in quotes and separate items by commas"
NO_VALUE = "is not a value; put text in quotes, and begin a comment with #"
UNCLOSED = ("Unclosed array", "Unterminated", 'Expected "\'"')  # the parser reports the end of what it misses

_POSITION = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")
_KEY = re.compile(r"""^\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=(.*)$""")
_SECTION = re.compile(r"^\s*\[{1,2}\s*([^\]]+?)\s*\]{1,2}")
_COMMENTED = re.compile(r"""((?:"(?:[^"\\]|\\.)*"|'[^']*'|[^#"'])*)(?:#.*)?""")
_ITEM = re.compile(r"""(?:"[^"]*"|'[^']*'|[^,\[\]"'])+""")
_PLAIN_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_TOML_WORDS = {
    "yes": "true", "on": "true", "no": "false", "off": "false", "true": "true", "false": "false",
    "infinity": "inf",
}  # fmt: skip
_EMPTY_WORDS = ("none", "null", "nil", "nan")
_CURLY_QUOTES = str.maketrans("“”„‟″‘’‚′", '"""""' + "''''")


def syntax_sentence(text: str, problem: str) -> str:
    """What is wrong in a text that is not TOML: "line 12: environment.cost_bps = 0,1 has a decimal comma; write 0.1".

    problem: the message of tomllib, which ends with line and column; it is kept where no fix is recognised.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    position = _POSITION.search(problem)
    reason = _POSITION.sub("", problem).rstrip(".")
    at = min(int(position[1]), len(lines)) - 1 if position and position[1] else len(lines) - 1
    if reason.startswith(UNCLOSED) or not (position and position[1]):
        at = next((i for i in range(at, -1, -1) if _is_open(lines[i])), _last_key(lines, at))
    found = _KEY.match(lines[at])
    opening = found or _KEY.match(lines[_last_key(lines, at)])
    key = _full_name(lines, at, opening[1].strip()) if opening else ""
    if found:
        return f"line {at + 1}: {_of_value(key, _without_comment(found[2]), reason)}"
    return f"line {at + 1}: {_of_line(lines[at].strip(), key, reason)}"


def _of_value(key: str, value: str, reason: str) -> str:
    """The sentence on a line with a key."""
    name = key.rpartition(".")[2]
    here = f"{key} = {value if len(value) <= LONGEST_VALUE else value[:LONGEST_VALUE] + '...'}"
    if reason.startswith(("Cannot overwrite", "Cannot mutate")):
        return f"{key} is set twice; remove one of the lines"
    if not value:
        return f"{key} has no value; write {name} = VALUE, or remove the line for the default"
    if fix := value_fix(value):
        return f"{here} {fix}"
    if value.startswith("="):
        return f"{key} has two equals signs; write {name} = {value.lstrip('= ')}"
    if "\\" in value and ("Unescaped" in reason or "hex" in reason):
        return f"{here} has a backslash in double quotes; write / instead, or single quotes"
    if value[0] in "\"'" and value.count(value[0]) % 2:
        return f"{here} has no closing quote; add {value[0] * (3 if value.startswith(value[0] * 3) else 1)}"
    if value[0] == "[":
        for item in _ITEM.findall(value):
            if not _is_value(item.strip()) and (fix := value_fix(item)):
                return f"{key} has the item {item.strip()}, which {fix}"
        if reason.startswith(UNCLOSED) or "]" not in value:
            return f"{here} is a list without its end or with a missing comma; write [item, item]"
        return f"{here} {NO_ITEM}"
    return f"{here} {NO_VALUE}" if reason.startswith("Expected newline") else f"{here} is not valid ({reason})"


def _of_line(line: str, key: str, reason: str) -> str:
    """The sentence on a line without a key: a section, an item of the list `key`, or text that is no setting."""
    if line.startswith("[") and "]" not in line:
        return f"{line} has no closing bracket; write {line}{']' * (len(line) - len(line.lstrip('[')))}"
    if reason.startswith("Cannot declare"):
        return f"the section {line} stands twice; move its settings to the first one"
    if key and "after a key" not in reason and not reason.startswith("Invalid statement"):
        item = _without_comment(line).rstrip(",")
        fix = value_fix(item)
        return f"{key} has the item {item}, which {fix}" if fix else f"{key} {NO_ITEM}, got {line}"
    name, colon, rest = line.partition(":")
    if colon and re.fullmatch(r"[\w.-]+", name.strip()):
        return f"{line} has a colon; write {name.strip()} = {rest.strip()}"
    return f"{line!r} is not a setting; write name = value, or begin the line with # for a comment"


def value_fix(value: str) -> str:
    """What is wrong with a value that is not TOML and what to write, as "has a decimal comma; write 0.1".

    Empty if unknown. value: as it stands in the file, without its comment.
    """
    text = value.strip()
    if not text:
        return ""
    if fix := number_fix(text):
        return fix
    if day := _date(text):
        return f'is not a date in this form; write "{day}"'
    if text.rstrip(";,") != text and _is_value(text.rstrip(";, ")):
        return f"ends with {text[-1]!r}; write {text.rstrip(';, ')}"
    for mark in ("//", ";"):
        if mark in text and _is_value(text.split(mark)[0].strip()):
            return f"is followed by {mark!r}; begin comments with #"
    if text.lower() in _TOML_WORDS:
        return "" if text in _TOML_WORDS.values() else f"is not valid; write {_TOML_WORDS[text.lower()]}"
    if text.lower() in _EMPTY_WORDS:
        return "is not valid; remove the line for the default"
    if (straight := text.translate(_CURLY_QUOTES)) != text:
        return f"has typographic quotes; write {straight}"
    if re.fullmatch(r"[A-Za-z_][\w.:/ -]*", text):
        return f'has no quotes; write "{text}"'
    if text[-1] in "\"'" and text.count(text[-1]) == 1 and len(text) > 1:
        return f"has no opening quote; write {text[-1]}{text}"
    return ""


def number_fix(text: str) -> str:
    """What is wrong with the notation of a number and what to write, as `value_fix`; empty if it is no number."""
    text = text.strip().replace("\N{NO-BREAK SPACE}", " ")
    if re.fullmatch(r"[+-]?\d{1,3}(?:[.' ]\d{3})+,\d+", text):
        return f"has a decimal comma; write {re.sub(r'''[.' ]''', '', text).replace(',', '.')}"
    if re.fullmatch(r"[+-]?[1-9]\d{0,2},\d{3}", text):
        return f"has a comma; write {text.replace(',', '')}, or {text.replace(',', '.')} if it separates decimals"
    if re.fullmatch(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?", text):
        return f"has a decimal comma; write {_plain(text.replace(',', '.'))}"
    if re.fullmatch(r"[+-]?\d{1,3}(?:[., ']\d{3}){2,}|[+-]?\d{1,3}[ ']\d{3}", text):
        return f"has separators of thousands; write {re.sub(r'''[., ']''', '', text)}"
    if re.fullmatch(r"[+-]?\d{1,3}(?:[, ']\d{3})+\.\d+", text):
        return f"has separators of thousands; write {re.sub(r'''[, ']''', '', text)}"
    if re.fullmatch(r"[+-]?0\d+(?:\.\d+)?", text):
        return f"begins with a zero; write {_plain(text)}"
    if re.fullmatch(r"[+-]?(?:\.\d+|\d+\.)(?:[eE][+-]?\d+)?", text):
        return f"has no digit on one side of the point; write {_plain(text)}"
    if found := re.fullmatch(r"([+-]?\d+(?:[.,]\d+)?)\s*%", text):
        return f"has a percent sign; write {float(found[1].replace(',', '.')) / 100:.10g}"
    if found := re.fullmatch(r"([+-]?\d+(?:\.\d+)?)\s*(?!e\d)[A-Za-z€$£]+", text):
        return f"has a unit; write {found[1]}"
    return ""


def quoted_number_fix(text: str) -> str:
    """As `number_fix`, for a text where a setting needs a number: "has quotes; write 4" if it is one."""
    return f"has quotes; write {text.strip()}" if _PLAIN_NUMBER.fullmatch(text.strip()) else number_fix(text)


def _plain(text: str) -> str:
    """A number without leading zeros and with digits on both sides of its point: "01" -> "1", ".5" -> "0.5"."""
    sign, digits = (text[0], text[1:]) if text[0] in "+-" else ("", text)
    digits = re.sub(r"^0+(?=\d)", "", digits)
    digits = f"0{digits}" if digits.startswith(".") else digits
    return sign + re.sub(r"\.(?!\d)", ".0", digits)


def _date(text: str) -> str:
    """A date with points or slashes as 2020-12-31; empty if it is none, YYYY-MM-DD if day and month are ambiguous."""
    found = re.fullmatch(r"[\"']?(\d{1,4})([./-])(\d{1,2})\2(\d{1,4})[\"']?", text)
    if found is None:
        return ""
    first, second, third = int(found[1]), int(found[3]), int(found[4])
    year, month, day = third, second, first
    if len(found[1]) == 4:
        year, month, day = first, second, third
    elif found[2] == "/" and second > 12:
        year, month, day = third, first, second
    elif found[2] == "/" and first <= 12:
        return "YYYY-MM-DD"
    try:
        return date(year, month, day).isoformat() if year > 999 else ""
    except ValueError:
        return ""


def _is_value(text: str) -> bool:
    return bool(_PLAIN_NUMBER.fullmatch(text)) or text in ("true", "false") or text[:1] + text[-1:] in ('""', "''")


def _is_open(line: str) -> bool:
    """Whether a line begins a list or a text that does not end on it."""
    found = _KEY.match(line)
    value = _without_comment(found[2]) if found else line
    unclosed = value.count('"') % 2 == 1 or value.count("'") % 2 == 1
    return unclosed or (found is not None and ("[" in value) and not value.rstrip().endswith("]"))


def _last_key(lines: list[str], at: int) -> int:
    """Number of the last line up to `at` that has a key; `at` if none has."""
    return next((i for i in range(at, -1, -1) if _KEY.match(lines[i])), at)


def _full_name(lines: list[str], at: int, key: str) -> str:
    section = next((found[1] for line in reversed(lines[:at]) if (found := _SECTION.match(line))), "")
    return f"{section}.{key}" if section else key


def _without_comment(value: str) -> str:
    """The value before a comment; a # in quotes is kept."""
    found = _COMMENTED.fullmatch(value)
    return (found[1] if found else value.partition(" #")[0]).strip()
