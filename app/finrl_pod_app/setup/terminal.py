"""Text for a terminal or a pipe: lines wrap at COLUMNS or at the width of the terminal."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 160  # of tables in a log or a pipe, unless COLUMNS limits it


def line_width() -> int | None:
    """Columns of a line: COLUMNS, else the width of the terminal; None in a pipe, whose lines have no limit."""
    is_limited = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return shutil.get_terminal_size().columns if is_limited else None


def wrapped(text: str) -> str:
    """The text with long lines wrapped between words, so that paths and commands can be copied."""
    width = line_width()
    if width is None:
        return text
    return "\n".join(_wrapped_line(line, width) for line in text.split("\n"))


def _wrapped_line(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line, max(width, len(indent) + 1), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def make_console() -> Console:
    """Return a rich console on standard output, as wide as the terminal; in a pipe a table keeps its columns."""
    from rich.console import Console

    width = line_width()
    return Console(width=PIPE_WIDTH if width is None else width, highlight=False, emoji=False)


def print_lines(console: Console, *lines: str, style: str | None = None) -> None:
    """Print the lines that are not empty, wrapped."""
    for line in filter(None, lines):
        console.print(wrapped(line), style=style, markup=False, soft_wrap=True)
