"""The wall and the layers: each half imports from its own lower layers and the shared ones, never from the other."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import pytest
from support.sources import SOURCE, sources

SHARED = ("node", "record", "spec", "errors")
LAUNCHER = (
    "cli", "display", "api", "trackers", "notifications", "diagnosis", "observe", "checks", "submission", "remote",
    "slurm", "containers", "emulator", "sandbox", "config",
)  # fmt: skip
ENGINE = ("workloads", "data", "training", "graph", "task")
DOORS = {"launcher": LAUNCHER, "shared": SHARED, "engine": ENGINE}
PACKAGES = {"clusterctl", *(f"clusterctl.{door}" for door in DOORS)}
FACES = {
    "": {"api", "display", "errors", "runs"},  # lazily
    "__main__": {"cli", "api"},
    "runs": {"api", "node", "program"},
    "program": {*SHARED},
    "call": {*SHARED},
    "pyg": {"graph"},
    "train": {"workloads", *SHARED},
}
# Third-party packages, and the packages of ours that may import them.
OUTSIDE = {
    "click": {"cli"},
    "rich": {"display"},
    "textual": {"display"},
    "waitress": {"display"},
    "mcp": {"api"},
    "mcp_types": {"api"},
    "anyio": {"api"},
    "submitit": {"submission"},
    "pydantic": {"config"},
    "platformdirs": {"config"},
    "pandas": {"api"},  # optional
    "torch": {*ENGINE, "pyg"},
    "torch_geometric": {*ENGINE, "pyg"},
    "numpy": set(ENGINE),
    "scipy": set(ENGINE),
    "llvmlite": {"graph"},
    "numba": {"graph"},
    "pymetis": {"graph"},
    "pynvml": {"task"},
    "tensorboard": {"trackers"},
    "wandb": {"trackers"},
    "mlflow": {"trackers"},
}


def below(package: str) -> set[str]:
    """The packages that `package` may import, including itself. `clusterctl` itself exports the API, lazily."""
    if package in FACES:
        return {*FACES[package], package, ""}
    if package == "cli":
        return {"cli", "display", "api", "errors", "spec", ""}
    for rooms in (LAUNCHER, ENGINE):
        if package in rooms:
            return {*rooms[rooms.index(package) :], *SHARED, "program", ""}
    return {*SHARED[SHARED.index(package) :], ""} if package in SHARED else {""}


def imported(node: ast.Import | ast.ImportFrom, name: str) -> Iterator[str]:
    """The modules that the module `name` imports there."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    assert node.level == 0, f"{name}: imports are absolute"
    if node.module not in PACKAGES:
        yield node.module or ""
        return
    here = SOURCE.parent.joinpath(*node.module.split("."))
    yield from (f"{node.module}.{alias.name}" for alias in node.names if any(here.glob(f"{alias.name}*")))


def package_of(module: str) -> str:
    """The room of `module`, its name if it is beside the doors, or empty for clusterctl itself."""
    names = module.split(".")[1:]
    return names[1] if names[0:1] and names[0] in DOORS and names[1:] else "".join(names[:1])


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


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count, too; those for type checking alone do not."""
    modules = {
        ".".join(("clusterctl", *path.with_suffix("").parts)).removesuffix(".__init__"): source
        for path, source in sources().items()
    }
    imports: dict[str, set[str]] = {name: set() for name in modules}
    for name, source in modules.items():
        for_types = {id(node) for node in source.for_types}
        for node in source.imports:
            if isinstance(node, ast.ImportFrom) and id(node) not in for_types:
                whole = {f"{node.module}.{alias.name}": node.module or "" for alias in node.names}
                found = {module if module in modules else package for module, package in whole.items()}
                imports[name] |= found & modules.keys() - {"clusterctl", name}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_the_cli_package_imports_no_operations() -> None:
    found = {
        package_of(module)
        for name, _, module in imported_modules()
        if name == "clusterctl.launcher.cli" and "clusterctl" in module
    }
    assert found == {"cli", "display", "errors"}


def test_third_party_packages_are_imported_only_where_allowed() -> None:
    wrong = [
        f"{name} imports {module}"
        for name, package, module in imported_modules()
        if (top := module.partition(".")[0]) not in {"clusterctl", *sys.stdlib_module_names}
        and package not in OUTSIDE.get(top, set())
    ]
    assert wrong == []


def test_every_package_is_in_a_layer() -> None:
    """Beside the doors are the public faces alone, and `shipped` and `schemas`, which contain no code."""
    left_out = {"__init__.py", "__pycache__", "py.typed"}
    beside = {path.stem for path in SOURCE.iterdir() if path.name not in left_out}
    assert beside <= {*DOORS, *FACES, "shipped", "schemas"}
    for door, rooms in DOORS.items():
        assert {path.stem for path in (SOURCE / door).iterdir() if path.name not in left_out} == set(rooms)


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
        ("record", "spec", True),
        ("record", "node", False),
        ("spec", "record", False),
        ("node", "program", False),
        ("errors", "spec", False),
    ],
)
def test_the_layers_allow_only_downward_imports(package: str, other: str, allowed: bool) -> None:
    assert (other in below(package)) == allowed
