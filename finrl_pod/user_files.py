"""Custom parts from Python files and from installed packages: `file.py:Name` and `package.module:Name`; tables.

A file is imported and runs with the rights of the user who started the program: it is trusted code, without a sandbox.

A run pins its files: `own.py:Name` becomes `own@0123456789abcdef.py:Name`, where the digits begin the SHA-256 of the
text, and the text is kept beside the config and in every saved agent. A pinned reference is read from there, so
that a run works without the file, and two runs with different versions of one file can be used side by side. The
tables of a run are pinned and kept beside its config in the same way: `data/macro@0123456789abcdef.csv`.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import hashlib
import importlib
import importlib.abc
import importlib.util
import linecache
import re
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, TypeVar

from finrl_pod import opened_files
from finrl_pod.errors import FinrlPodError, InputError, closest_name, did_you_mean, listed, shown
from finrl_pod.opened_files import IMPORTED_PACKAGES, MODULE_PREFIX, OUR_PACKAGES
from finrl_pod.process import interrupt

T = TypeVar("T")
DIGITS = 16
FOLDER = "own_files"  # of a run
TABLE_SUFFIX = ".csv"
UNPINNED_FIELDS = ("source",)  # the file of an environment is the data of its run; the run checks its hash
# Groups whose parts a running program can register, and the function of `import finrl_pod as fp`.
REGISTERED = {"features": "register_feature", "policies": "register_policy", "algorithms": "register_algorithm"}
_MODULE_REFERENCE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")
_PINNED = re.compile(rf"(?P<stem>.+)@(?P<digest>[0-9a-f]{{{DIGITS}}})(?P<suffix>\.py|\.csv)")
_KEPT: dict[str, str] = {}  # own@0123456789abcdef.py -> text
_FOLDERS: dict[str, Path] = {}  # own@0123456789abcdef.py -> folder that it was pinned in, where its neighbours are
_NEIGHBOURS: dict[str, str] = {}  # file name -> text, of neighbours that need not lie on this machine
_MODULES: dict[tuple[str, str], ModuleType] = {}  # (path, digest) -> module
_EARLIER_MODULES: dict[str, set[str]] = {}  # folder -> names of modules imported before the first file in it
OUT_OF_MEMORY = "can't allocate memory"  # message of torch; not the fault of the code that asked


def is_file_reference(text: str) -> bool:
    """Whether `text` has the form file.py:Name."""
    path, _, name = text.rpartition(":")
    return path.endswith(".py") and bool(name)


def is_module_reference(text: str) -> bool:
    """Whether `text` has the form package.module:Name."""
    return _MODULE_REFERENCE.fullmatch(text) is not None and not is_file_reference(text)


def is_custom(text: str) -> bool:
    """Whether `text` names a custom part, as file.py:Name or package.module:Name; it may be missing."""
    return is_file_reference(text) or is_module_reference(text)


def unpinned(text: str) -> str:
    """A text with references as the user wrote them: own.py:Name for own@0123456789abcdef.py:Name."""
    return re.sub(rf"@[0-9a-f]{{{DIGITS}}}(\.py:|\.csv)", r"\1", text)


def written_path(path: Path) -> Path:
    """A path as the user wrote it, but for the folder: own.py of own@0123456789abcdef.py."""
    name_match = _PINNED.fullmatch(path.name)
    return Path(f"{name_match['stem']}{name_match['suffix']}") if name_match else path


# ---------------------------------------------------------------------- text of files


def source_text(path: Path, purpose: str = "a custom part") -> str:
    """Text of a file, or the kept text of a pinned one. Raises InputError if there is neither, and for no UTF-8."""
    if path.name in _KEPT:
        return _KEPT[path.name]
    try:
        text = path.read_bytes().decode("utf-8")  # with the ends of lines as they are: the hash is of the bytes
    except (FileNotFoundError, IsADirectoryError):
        folder_note = "" if path.is_absolute() else f" in {Path.cwd()}, the current folder"
        fix = did_you_mean(path) or ("; write it as path/to/file.py:Name" if path.suffix == ".py" else "")
        raise InputError(f"there is no file {path} for {purpose}{folder_note}{fix}") from None
    except OSError as error:
        raise InputError(f"cannot read {path} for {purpose}: {error.strerror}") from None
    except UnicodeDecodeError:
        use = "imported as Python" if path.suffix == ".py" else "read"
        raise InputError(f"{path} cannot be {use}: it is not UTF-8 text") from None
    name_match = _PINNED.fullmatch(path.name)
    if name_match and _digest(text) != name_match["digest"]:
        raise InputError(f"{path} was changed: its text does not have the hash in its name; restore it")
    return text


def pin(reference: str) -> str:
    """The pinned form of file.py:Name; its text is kept from now on; a pinned reference stays as it is.

    Without the file, the only kept one of that name is taken. Raises InputError as `source_text`.
    """
    path_text, _, name = reference.rpartition(":")
    path = Path(path_text)
    if _PINNED.fullmatch(path.name):
        _KEPT.setdefault(path.name, source_text(path, reference))
        return f"{path.name}:{name}"
    if not path.is_file():
        candidates = [pinned_name for pinned_name in _KEPT if str(written_path(Path(pinned_name))) == path.name]
        if len(candidates) == 1:
            return f"{candidates[0]}:{name}"
    text = source_text(path, reference)
    pinned_name = f"{path.stem}@{_digest(text)}.py"
    _KEPT[pinned_name] = text
    _FOLDERS[pinned_name] = path.resolve().parent
    _add_to_path(path)
    return f"{pinned_name}:{name}"


def pin_table(file: str) -> str:
    """The pinned form of a table of values; its text is kept from now on. Raises InputError as `source_text`."""
    path = Path(file)
    if path.suffix != TABLE_SUFFIX:
        raise InputError(f"a table of features must be a file such as macro{TABLE_SUFFIX}, got {file!r:.80}")
    text = source_text(path, "a table of features")
    if _PINNED.fullmatch(path.name) is None:
        path = path.with_name(f"{path.stem}@{_digest(text)}{path.suffix}")
    _KEPT[path.name] = text
    return str(path)


def pinned(record: T) -> T:
    """A record of settings with all references of the form file.py:Name pinned, but for files that are missing.

    Settings that the class of a record names in `PINNED_FIELDS` are tables.
    """
    changes = {}
    tables = getattr(type(record), "PINNED_FIELDS", ())
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        value = getattr(record, field.name)
        if field.name in UNPINNED_FIELDS:
            continue
        pinned_value = pin_table(value) if field.name in tables else _pinned_value(value)
        if pinned_value != value:
            changes[field.name] = pinned_value
    return dataclasses.replace(record, **changes) if changes else record  # type: ignore[type-var]


def _pinned_value(value: Any) -> Any:
    if isinstance(value, str) and is_file_reference(value):
        with contextlib.suppress(InputError):  # refused where it is used, by an error that says what for
            return pin(value)
    if isinstance(value, tuple):
        return tuple(_pinned_value(item) for item in value)
    return pinned(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def kept_files(values: Any) -> dict[str, str]:
    """Name and text of every pinned file that plain values (of a config, or of a snapshot) refer to."""
    return {name: source_text(Path(name)) for name in sorted(_pinned_names(values))}


def kept_neighbours(values: Any) -> dict[str, str]:
    """Name and text of the files of the same folder that the pinned files of plain values import, directly or not."""
    neighbour_texts: dict[str, str] = {}
    for name in sorted(name for name in _pinned_names(values) & _FOLDERS.keys() if name.endswith(".py")):
        waiting = [_KEPT[name]]
        while waiting:
            for module in imported_modules(waiting.pop()):
                path = _FOLDERS[name] / f"{module}.py"
                if path.name not in neighbour_texts and path.is_file():
                    neighbour_texts[path.name] = source_text(path)
                    waiting.append(neighbour_texts[path.name])
    return neighbour_texts


def imported_modules(text: str) -> set[str]:
    """Top-level names of the modules that a file imports; none if it is not Python."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:
        return set()
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in names}


def keep(files: Mapping[str, str]) -> None:
    """Keep the texts of pinned files by name. Raises InputError for a text that does not have the hash in its name."""
    for name, text in files.items():
        name_match = _PINNED.fullmatch(name)
        if name_match is None or _digest(text) != name_match["digest"]:
            raise InputError(f"the kept file {name} was changed: its text does not have the hash in its name")
        _KEPT[name] = text


def keep_folder(folder: Path) -> None:
    """Keep the pinned files of a run folder. Raises InputError for a changed one."""
    if folder.is_dir():
        files = [path for path in folder.iterdir() if _PINNED.fullmatch(path.name)]
        keep({path.name: path.read_bytes().decode("utf-8", "replace") for path in files})
        for path in files:
            _FOLDERS.setdefault(path.name, folder.resolve())
        for path in folder.glob("*.py"):  # neighbours are found after those beside the file itself
            _add_to_path(path)


def keep_neighbours(files: Mapping[str, str]) -> None:
    """Make the texts of `kept_neighbours` importable where their files are not found, as on another machine."""
    if not _NEIGHBOURS:
        sys.meta_path.append(_NeighbourFinder())
    _NEIGHBOURS.update(files)


class _NeighbourFinder(importlib.abc.MetaPathFinder):
    """Finds modules in the texts that `keep_neighbours` was given."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        del target
        if path is not None or f"{name}.py" not in _NEIGHBOURS:
            return None
        return importlib.util.spec_from_loader(name, _TextLoader(), origin=f"{name}.py")


class _TextLoader(importlib.abc.InspectLoader):
    def get_source(self, fullname: str) -> str:
        return _NEIGHBOURS[f"{fullname}.py"]


def custom_parts(values: Any) -> set[str]:
    """References to custom parts in plain values (of a config, or of a snapshot)."""
    return {text for text in _texts(values) if is_custom(text)}


def _pinned_names(values: Any) -> set[str]:
    """Names of the pinned files and tables that plain values refer to."""
    names = {Path(text.rpartition(":")[0] if is_file_reference(text) else text).name for text in _texts(values)}
    return {name for name in names if _PINNED.fullmatch(name)}


def _texts(values: Any) -> Iterator[str]:
    """All texts in plain values."""
    if isinstance(values, str):
        yield values
    items = values.values() if isinstance(values, Mapping) else values if isinstance(values, list | tuple) else ()
    for item in items:
        yield from _texts(item)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


# ---------------------------------------------------------------------- objects


def import_user_file(path: Path, purpose: str) -> Any:
    """The module of a file, imported again. purpose: what it is needed for, such as "the strategy mine.py:Mine".

    The file may import its neighbours in the same folder. Raises InputError for a file that is missing or cannot be
    imported.
    """
    text = source_text(path, purpose)
    _add_to_path(path)
    _EARLIER_MODULES.setdefault(str(_FOLDERS.get(path.name, path.resolve().parent)), set(sys.modules))
    name = MODULE_PREFIX + re.sub(r"\W", "_", path.stem)
    module = ModuleType(name)
    module.__file__ = str(path)
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))  # for tracebacks
    sys.modules[name] = module  # dataclasses look up their module
    opened_files.watch()
    try:
        code = compile(text, str(path), "exec")
        with stdout_to_stderr():
            exec(code, module.__dict__)
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise InputError(f"{written_path(path)} could not be imported: {error_text(error)}") from error
    return module


def check_file_defines(reference: str, purpose: str) -> None:
    """Check file.py:Name without running the file, for a refusal in no time.

    Raises InputError as `source_text`, and for a file with other classes or functions in which the name does not occur.
    A file that cannot be parsed, or imports everything from another one, is left to `user_object`.
    """
    path_text, _, name = reference.rpartition(":")
    path = Path(path_text)
    text = source_text(path, purpose)
    if re.search(rf"\b{re.escape(name)}\b|import\s+\*", text):
        return
    try:
        nodes = ast.parse(text).body
    except SyntaxError:
        return
    defined_names = [node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    if not defined_names:
        return
    close = closest_name(name, defined_names)
    hint = f"did you mean {close}?" if close else f"it defines {', '.join(defined_names)}"
    raise InputError(f"{written_path(path)} has no {name}; {hint}")


def user_object(reference: str, purpose: str, *, again: bool = False) -> Any:
    """The object of file.py:Name or package.module:Name.

    A file is imported once for each version of its text, or at every call if `again` is True. Raises InputError for
    another name, as `import_user_file`, and for a name that the file or module does not define.
    """
    if is_module_reference(reference):
        return _module_object(reference, purpose)
    if not is_file_reference(reference):
        raise InputError(f"{purpose} must be named file.py:Name or package.module:Name")
    path_text, _, name = reference.rpartition(":")
    path = Path(path_text)
    key = (str(path.absolute()), _digest(source_text(path, purpose)))
    if again or key not in _MODULES:
        _MODULES[key] = import_user_file(path, purpose)
    module = _MODULES[key]
    if not hasattr(module, name):
        defined_names = [
            key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
        ]
        definitions = ", ".join(sorted(defined_names)) or "nothing"
        raise InputError(f"{written_path(path)} has no {name}; it defines {definitions}")
    return getattr(module, name)


def forget_modules() -> None:
    """Import user files and their neighbours again at their next use, so that they keep nothing from earlier calls."""
    _MODULES.clear()
    for name, module in list(sys.modules.items()):
        file = vars(module).get("__file__")
        earlier_modules = _EARLIER_MODULES.get(str(Path(file).parent)) if file else None
        if earlier_modules is not None and name not in earlier_modules and not name.startswith(MODULE_PREFIX):
            del sys.modules[name]


def _module_object(reference: str, purpose: str) -> Any:
    module_name, _, name = reference.partition(":")
    IMPORTED_PACKAGES.add(module_name.partition(".")[0])
    opened_files.watch()
    try:
        with stdout_to_stderr():
            module = importlib.import_module(module_name)
    except BaseException as error:
        if is_interrupt(error):
            raise
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
            file = Path(*module_name.split(".")).with_suffix(".py")
            fix = f"write {file}:{name} for the file in this folder" if file.is_file() else "install its package"
            raise InputError(f"there is no module {module_name} for {purpose}; {fix}") from None
        raise InputError(f"{module_name} could not be imported: {error_text(error)}") from error
    if not hasattr(module, name):
        raise InputError(f"the module {module_name} has no {name}")
    return getattr(module, name)


def custom_object(name: str, purpose: str) -> Any | None:
    """The object of file.py:Name or package.module:Name, None for another name. Raises InputError as `user_object`."""
    return user_object(name, purpose) if is_custom(name) else None


def custom_source(name: str, purpose: str) -> tuple[Path, str]:
    """The file that defines a custom part, and its text.

    Raises InputError as `user_object`, and for a part whose module has no Python file.
    """
    if is_file_reference(name):
        path = Path(name.rpartition(":")[0])
        return path, source_text(path, purpose)
    module = sys.modules.get(getattr(user_object(name, purpose), "__module__", ""))
    if module is None or not (file := getattr(module, "__file__", None)):
        raise InputError(f"there is no Python file of {name} for {purpose}")
    return Path(file), source_text(Path(file), purpose)


def closest_part(group: str, name: str, built_in: Iterable[str]) -> str:
    """A hint for a name that is neither built in nor a custom part."""
    candidates = list(built_in)
    if close := closest_name(name, candidates):
        return f"did you mean {close}?"
    return f"known are {listed(candidates)}; {custom_part_hint(group, name)}"


def custom_part_hint(group: str, name: str) -> str:
    """How custom parts are named, and which function registers one in Python if there is one."""
    hint = "name a custom part as file.py:Name or package.module:Name"
    if group not in REGISTERED:
        return hint
    return f"{hint}, or call fp.{REGISTERED[group]}({name!r}) first in this process"


def _add_to_path(path: Path) -> None:
    folder = str(path.resolve().parent)
    if path.is_file() and folder not in sys.path:
        sys.path.append(folder)


def stdout_to_stderr() -> contextlib.AbstractContextManager[Any]:
    """Redirect the output of user code: standard output may have to be a single JSON object."""
    return contextlib.redirect_stdout(sys.stderr)


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception from user code is Ctrl-C and ends the program.

    Not where the program handles the signal itself, as the daemon does: the code then raised it.
    """
    handler = signal.getsignal(signal.SIGINT)
    return isinstance(error, KeyboardInterrupt) and handler in (signal.default_int_handler, interrupt)


def error_text(error: BaseException) -> str:
    """Type and message of an error on one line, with the file and line if it passed through a user file."""
    try:
        message = str(error)
    except BaseException:  # noqa: BLE001  of an exception in user code
        message = "its message cannot be read"
    text = " ".join(f"{type(error).__name__}: {message}".split())
    frames = own_frames(error)
    if not frames:
        return text
    frame, line = frames[-1]
    path = Path(frame.f_code.co_filename)
    return f"{text} ({path if _is_packaged(frame) else written_path(path)}, line {line})"


def part_name(frame: FrameType) -> str:
    """The part whose code a frame of `own_frames` runs, as the user named it: file.py:Name, or package.module:Name.

    The name is the class of the object; it may inherit the method.
    """
    owner = frame.f_locals.get("self")
    name = frame.f_code.co_name if owner is None else type(owner).__name__
    return f"{_module(frame) if _is_packaged(frame) else written_path(Path(frame.f_code.co_filename)).name}:{name}"


def own_frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """Frames and lines in user files and in packages of imported parts, the innermost last."""
    traceback_frames = traceback.walk_tb(error.__traceback__)
    return [(x, line) for x, line in traceback_frames if _module(x).startswith(MODULE_PREFIX) or _is_packaged(x)]


def _is_packaged(frame: FrameType) -> bool:
    return _module(frame).partition(".")[0] in IMPORTED_PACKAGES - OUR_PACKAGES


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


@contextlib.contextmanager
def own_failures() -> Iterator[None]:
    """Raise InputError for an exception from a user file or package; others are left as they are."""
    try:
        yield
    except (FinrlPodError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        message = own_failure(error)
        if message is None or OUT_OF_MEMORY in str(error):
            raise
        raise InputError(message) from error


def own_failure(error: BaseException) -> str | None:
    """The failed part of the user code, and where it failed; None if the exception passed through none of it."""
    frames = own_frames(error)
    return f"{part_name(frames[0][0])} failed: {error_text(error)}" if frames else None


def check_name(part_kind: str, name: object) -> None:
    """Raises InputError for a name to register that is not a text, such as the function of a bare decorator."""
    if not isinstance(name, str) or not name.strip():
        example = getattr(name, "__name__", "mine")
        raise InputError(
            f'the {part_kind} needs a name in quotes, got {shown(name)}: write @fp.register_{part_kind}("{example}")'
        )
