"""Import layers, import cycles and dependencies of the core, checked on the source of every module."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeGuard

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = {
    "finrl_pod": ROOT / "finrl_pod",
    "finrl_pod_envs": ROOT / "envs" / "finrl_pod_envs",
    "finrl_pod_strategies": ROOT / "strategies" / "finrl_pod_strategies",
    "finrl_pod_app": ROOT / "app" / "finrl_pod_app",
    "benchmarks": ROOT / "benchmarks",
}
MAY_IMPORT = {
    "finrl_pod": set(),
    "finrl_pod_envs": {"finrl_pod"},
    "finrl_pod_strategies": {"finrl_pod"},
    "finrl_pod_app": {"finrl_pod", "finrl_pod_envs", "finrl_pod_strategies"},
    "benchmarks": {"finrl_pod", "finrl_pod_envs", "finrl_pod_strategies", "finrl_pod_app"},
}
# Subpackages of finrl_pod: each may import itself and those of a lower rank.
RANK = {
    "errors": 0,
    "arguments": 1,
    "masking": 1,
    "display": 0,
    "prices": 1,
    "types": 2,
    "random": 0,
    "process": 0,
    "settings": 2,
    "files": 2,
    "memory": 2,
    "tables": 3,
    "user_files": 1,
    "opened_files": 0,
    "protocols": 3,
    "native": 3,
    "data": 4,
    "market": 4,
    "evaluate": 5,
    "fake_alpaca": 5,
    "rl": 6,
    "promotion": 7,
    "tournament": 7,
    "paper": 7,
    "registry": 8,
}
OWN_MODULES = "(own modules)"
# Subfolders of a folder, lowest first: each may import those before it.
FOLDER_RANK = {
    "finrl_pod.data": (OWN_MODULES, "sources"),
    "finrl_pod.rl": (
        *("native", "networks", "optimisation", "fused", OWN_MODULES, "algorithms", "training", "multi_agent"),
    ),
    "finrl_pod.tournament": (OWN_MODULES, "executors"),
    "finrl_pod.paper": (OWN_MODULES, "domain", "journal", "brokers", "execution", "monitoring", "runtime"),
    "finrl_pod.paper.brokers": ("alpaca", OWN_MODULES),
    "finrl_pod_app": (
        *(
            "report",
            "setup",
            "prices",
            "evaluation",
            "environment_training",
            "training",
            "multi_agent",
            "paper",
        ),
        *("dashboard", "cli", "api"),
    ),
    "finrl_pod_app.dashboard": (OWN_MODULES, "queries", "figures", "actions", "pages", "script", "serving"),
}
# Folders that still import each other. The list may only shrink.
FOLDER_CYCLES: set[str] = set()
# Modules that need only torch, numpy and pandas.
CORE = (
    *(
        "finrl_pod.types",
        "finrl_pod.errors",
        "finrl_pod.process",
        "finrl_pod.settings",
        "finrl_pod.protocols",
        "finrl_pod.random",
    ),
    *("finrl_pod.native", "finrl_pod.market", "finrl_pod.rl", "finrl_pod.tournament", "finrl_pod.data.tensor"),
    *("finrl_pod_envs", "benchmarks.gpu", "benchmarks.learning", "benchmarks.runner"),
)
CORE_NEEDS = {"torch", "numpy", "pandas"}
# Adapters for other libraries, and kernels in Triton: not imported by the core, which imports kernels on first use.
ADAPTERS = {
    "finrl_pod.native.triton_philox",
    "finrl_pod.rl.fused.triton_policy",
    "finrl_pod_envs.triton_step",
    "finrl_pod_envs.gym",
}


def modules() -> dict[str, Path]:
    """Every module of the project by its dotted name."""
    result = {}
    for package, folder in SOURCES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            result[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return result


MODULES = modules()


def imports(name: str, *, module_level: bool = False) -> set[str]:
    """Dotted names that a module imports; with `module_level` only what runs when it is imported."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    return {target for node in nodes(tree, module_level=module_level) for target in targets(node, name)}


def nodes(tree: ast.AST, *, module_level: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(tree):
        if module_level and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if module_level and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from nodes(child, module_level=module_level)


def targets(node: ast.AST, importer: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{importer} has a relative import: use the absolute name"
        for alias in node.names:
            full_name = f"{node.module}.{alias.name}"
            yield full_name if full_name in MODULES else str(node.module)


def subpackage(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def test_core_does_not_name_modules_of_higher_packages() -> None:
    """Only finrl_pod/__init__.py may name modules of the higher packages as strings, to import them lazily."""
    above = tuple(f"{package}." for package in SOURCES if package != "finrl_pod")
    for name, path in MODULES.items():
        if name.startswith("finrl_pod."):
            strings = [
                node.value
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            ]
            assert not [text for text in strings if text.startswith(above)], name


def cycles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Strongly connected components of two or more nodes, each sorted, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                components.append(sorted(component))

    for node in graph:
        if node not in index:
            visit(node)
    return components


def test_no_import_cycles() -> None:
    """Imports inside functions and under TYPE_CHECKING count."""
    assert cycles({name: (imports(name) & set(MODULES)) - {name} for name in MODULES}) == []


def folder(name: str) -> tuple[str, ...]:
    """Names of the folders that lead to a module."""
    parts = tuple(name.split("."))
    return parts if MODULES[name].name == "__init__.py" else parts[:-1]


def folder_graphs() -> dict[str, dict[str, set[str]]]:
    """For each folder, which of its subfolders import which others. The folder's modules are the node OWN_MODULES."""
    graphs: dict[str, dict[str, set[str]]] = {}
    for name in MODULES:
        importer = folder(name)
        for target in (imports(name) | imported_texts(name)) & set(MODULES):
            imported = folder(target)
            if imported == importer:
                continue
            depth = next((k for k, (a, b) in enumerate(zip(importer, imported, strict=False)) if a != b), None)
            depth = min(len(importer), len(imported)) if depth is None else depth
            parent = graphs.setdefault(".".join(importer[:depth]), {})
            source, sink = (f[depth] if len(f) > depth else OWN_MODULES for f in (importer, imported))
            parent.setdefault(source, set()).add(sink)
            parent.setdefault(sink, set())
    return graphs


def imported_texts(name: str) -> set[str]:
    """Modules that are imported by a literal name, as in `import_module("package.module")`."""
    calls = (node for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))) if is_import_call(node))
    return {arg.value for call in calls for arg in call.args[:1] if isinstance(arg, ast.Constant)}


def is_import_call(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__")


def test_folders_do_not_import_each_other() -> None:
    """At every depth: two folders beside each other, or a folder and the modules of its parent, import one way."""
    groups = {f"{parent}: {', '.join(group)}" for parent, graph in folder_graphs().items() for group in cycles(graph)}
    assert groups == FOLDER_CYCLES


@pytest.mark.parametrize("parent", FOLDER_RANK)
def test_subfolders_import_downwards(parent: str) -> None:
    ranks, graph = FOLDER_RANK[parent], folder_graphs()[parent]
    assert set(graph) <= set(ranks), f"{parent} has a new subfolder: add it to FOLDER_RANK"
    assert not [(a, b) for a in graph for b in graph[a] if ranks.index(b) >= ranks.index(a)]


def test_no_folder_has_more_than_thirty_modules() -> None:
    counts = Counter(path.parent for path in MODULES.values())
    assert not {str(path.relative_to(ROOT)) for path, count in counts.items() if count > 30}


def test_every_package_has_modules() -> None:
    assert {name.split(".")[0] for name in MODULES} == set(SOURCES)


@pytest.mark.parametrize("name", MODULES)
def test_packages_import_downwards(name: str) -> None:
    package = name.split(".")[0]
    reached = {target.split(".")[0] for target in imports(name)} & set(SOURCES)
    assert reached <= MAY_IMPORT[package] | {package}


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("finrl_pod.")])
def test_subpackages_import_downwards(name: str) -> None:
    own = subpackage(name)
    assert own in RANK, f"finrl_pod.{own} is a new subpackage: add it to RANK"
    reached = {subpackage(target) for target in imports(name) if target.split(".")[0] == "finrl_pod"} - {"", own}
    assert not {other for other in reached if RANK[other] >= RANK[own]}


def in_core(name: str) -> bool:
    return name not in ADAPTERS and any(name == core or name.startswith(f"{core}.") for core in CORE)


def test_core_needs_only_torch_numpy_and_pandas() -> None:
    """Module level imports, followed through the project's own modules and the packages that hold them."""
    queue = [name for name in MODULES if in_core(name)]
    seen: set[str] = set()
    unexpected = set()
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        seen.add(name)
        parts = name.split(".")
        queue += [".".join(parts[:i]) for i in range(1, len(parts))]
        for target in imports(name, module_level=True):
            top = target.split(".")[0]
            if top in SOURCES:
                queue.append(target)
            elif top not in CORE_NEEDS and top not in sys.stdlib_module_names:
                unexpected.add(f"{name} imports {target}")
    assert len(seen) > len(CORE) // 2
    assert not unexpected


def test_commands_start_without_heavy_modules() -> None:
    heavy = ["torch", "numpy", "pandas", "plotly", "rich", "pydantic", "skfolio"]
    code = f"import sys, finrl_pod_app.cli.main; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
