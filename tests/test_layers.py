"""Import layers, import cycles and dependencies of the core, checked on the source of every module."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = {
    "finrl_pod": ROOT / "finrl_pod",
    "finrl_pod_envs": ROOT / "envs" / "finrl_pod_envs",
    "finrl_pod_strategies": ROOT / "strategies" / "finrl_pod_strategies",
    "finrl_pod_app": ROOT / "app" / "finrl_pod_app",
}
MAY_IMPORT = {
    "finrl_pod": set(),
    "finrl_pod_envs": {"finrl_pod"},
    "finrl_pod_strategies": {"finrl_pod"},
    "finrl_pod_app": {"finrl_pod", "finrl_pod_envs", "finrl_pod_strategies"},
}
# Subpackages of finrl_pod: each may import itself and those of a lower rank.
RANK = {
    "errors": 0,
    "masking": 0,
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
    "own_code": 2,
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
    *("finrl_pod_envs", "finrl_pod_app.bench"),
)
CORE_NEEDS = {"torch", "numpy", "pandas"}
# Adapters for other libraries, and kernels in Triton: not imported by the core, which imports kernels on first use.
ADAPTERS = {
    "finrl_pod.native.triton_philox",
    "finrl_pod.rl.native.triton_policy",
    "finrl_pod_envs.triton_step",
    "finrl_pod_envs.gym",
    "finrl_pod_envs.multi_agent.pettingzoo_view",
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


def test_no_import_cycles() -> None:
    """Imports inside functions and under TYPE_CHECKING count: strongly connected components, by Tarjan's algorithm."""
    graph = {name: sorted((imports(name) & set(MODULES)) - {name}) for name in MODULES}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in graph[module]:
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            component = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(component) > 1:
                cycles.append(sorted(component))

    for module in graph:
        if module not in index:
            visit(module)
    assert cycles == []


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
