"""The wall and the layers: each half imports from its own lower layers and the shared ones, never from the other."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

import pytest
from support.sources import SOURCE, sources

SHARED = ("runs", "spec", "errors")
LOGIN = (
    "__main__", "cli", "display", "api", "trackers", "notifications", "diagnosis", "observe", "checks", "launch",
    "remote", "slurm", "containers", "emulator", "sandbox", "config",
)  # fmt: skip
TASK = ("workloads", "training", "graph", "task")
# Third-party packages, and the packages of ours that may import them.
OUTSIDE = {
    "click": {"cli"},
    "rich": {"display"},
    "textual": {"display"},
    "waitress": {"display"},
    "submitit": {"launch"},
    "pydantic": {"config"},
    "platformdirs": {"config"},
    "pandas": {"api"},  # optional
    "torch": set(TASK),
    "torch_geometric": set(TASK),
    "numpy": set(TASK),
    "scipy": set(TASK),
    "numba": {"graph"},
    "pynvml": {"task"},
    "tensorboard": {"trackers"},
    "wandb": {"trackers"},
    "mlflow": {"trackers"},
}


def below(package: str) -> set[str]:
    """The packages that `package` may import, including itself. `clusterctl` itself exports the API, lazily."""
    if package in ("cli", ""):
        return {"display", "api", "errors", "spec", "", *({"cli"} if package else {"runs"})}
    for stack in (LOGIN, TASK):
        if package in stack:
            return {*stack[stack.index(package) :], *SHARED, ""}
    return {*SHARED[SHARED.index(package) :], ""} if package in SHARED else {""}


def imported(node: ast.Import | ast.ImportFrom, name: str) -> Iterator[str]:
    """The modules that the module `name` imports there."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    assert node.level == 0, f"{name}: imports are absolute"
    yield node.module or ""
    if node.module == "clusterctl":
        yield from (f"clusterctl.{alias.name}" for alias in node.names if (SOURCE / alias.name).is_dir())


def package_of(module: str) -> str:
    """The subpackage of clusterctl that contains `module`; empty for clusterctl itself."""
    return module.partition("clusterctl")[2].strip(".").partition(".")[0]


def imported_modules() -> Iterator[tuple[str, str, str]]:
    """Every import, with its module and package: at the top, inside functions, or only for type checking."""
    for path, source in sources().items():
        name = ".".join(("clusterctl", *path.with_suffix("").parts)).removesuffix(".__init__")
        for node in source.imports:
            for module in imported(node, name):
                yield name, package_of(name), module


def test_packages_import_only_from_layers_below() -> None:
    wrong = [
        f"{name} imports {module}"
        for name, package, module in imported_modules()
        if module.partition(".")[0] == "clusterctl" and package_of(module) not in below(package)
    ]
    assert wrong == []


def test_the_cli_package_imports_no_operations() -> None:
    found = {
        package_of(module)
        for name, _, module in imported_modules()
        if name == "clusterctl.cli" and "clusterctl" in module
    }
    assert found == {"cli", "display", "errors", ""}


def test_third_party_packages_are_imported_only_where_allowed() -> None:
    wrong = [
        f"{name} imports {module}"
        for name, package, module in imported_modules()
        if (top := module.partition(".")[0]) not in {"clusterctl", *sys.stdlib_module_names}
        and package not in OUTSIDE.get(top, set())
    ]
    assert wrong == []


def test_every_package_is_in_a_layer() -> None:
    known = {*SHARED, *LOGIN, *TASK, "shipped", "schemas"}  # the last two contain no code
    found = {path.stem for path in SOURCE.iterdir() if path.name not in {"__init__.py", "__pycache__", "py.typed"}}
    assert found <= known


@pytest.mark.parametrize(
    ("package", "other", "allowed"),
    [
        ("cli", "api", True),
        ("cli", "config", False),
        ("", "api", True),
        ("api", "config", True),
        ("api", "display", False),
        ("config", "cli", False),
        ("slurm", "observe", False),
        ("observe", "task", False),
        ("training", "graph", True),
        ("graph", "training", False),
        ("task", "slurm", False),
        ("runs", "spec", True),
        ("spec", "runs", False),
        ("errors", "spec", False),
    ],
)
def test_the_layers_allow_only_downward_imports(package: str, other: str, allowed: bool) -> None:
    assert (other in below(package)) == allowed
