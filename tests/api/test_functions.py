"""Functions of the project as runs: what is refused before anything is submitted, and what comes back."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.mistake import Desk

import clusterctl
from clusterctl import call

FUNCTIONS = """
import functools

def loss(lr, epochs=1):
    return {"loss": lr / epochs, "by": (1, 2)}

def fails():
    raise ValueError("no such column")

def odd():
    return {1, 2}

class Model:
    @staticmethod
    def fit(x):
        return x

def renamed():
    return 1

other, renamed = renamed, None
wrapped = functools.partial(loss, 1)
"""


@pytest.fixture
def functions(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of the project."""
    desk.write("own_functions.py", FUNCTIONS)
    monkeypatch.syspath_prepend(desk.project)
    yield importlib.import_module("own_functions")
    del sys.modules["own_functions"]


def test_a_function_runs_and_its_result_comes_back(desk: Desk, functions: Any) -> None:
    one = {"resources.nodes": 1, "resources.tasks_per_node": 2}
    run = clusterctl.submit_function(functions.loss, 0.5, kwargs={"epochs": 2}, cluster="local", overrides=one)
    failing = clusterctl.submit_function(functions.fails, cluster="local")
    assert run.name == "loss"
    assert run.result(timeout=300) == {"loss": 0.25, "by": [1, 2]}
    with pytest.raises(clusterctl.RunFailed, match="no such column"):
        failing.result(timeout=300)
    assert run.why().headline.cause == "the run finished"


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("lambda", "defined in a notebook"),
        ("inner", "defined in a notebook"),
        ("main", "defined in a notebook"),
        ("dumps", "a task cannot import dumps from"),
        ("len", "a task cannot import len from"),
        ("other", "another object"),
        ("wrapped", "not a function"),
        ("text", "not a function"),
    ],
)
def test_a_function_that_a_task_cannot_import_is_refused(desk: Desk, functions: Any, named: str, expected: str) -> None:
    def inner() -> None: ...

    def of_a_notebook() -> None: ...

    of_a_notebook.__module__, of_a_notebook.__qualname__ = "__main__", "of_a_notebook"
    given: dict[str, Any] = {
        "lambda": lambda: 1,
        "inner": inner,
        "main": of_a_notebook,
        "dumps": json.dumps,
        "len": len,
    }
    given |= {"other": functions.other, "wrapped": functions.wrapped, "text": "own_functions.loss"}
    with pytest.raises(clusterctl.UsageError, match=expected) as refused:
        clusterctl.submit_function(given[named], cluster="local")
    assert refused.value.hint
    assert desk.run_directories() == []


@pytest.mark.parametrize(
    "value",
    [(1, 2), {1: 2}, {1, 2}, b"x", object(), float("nan"), float("inf"), [(1,)], "x" * 200_000],
    ids=lambda value: type(value).__name__,
)
def test_an_argument_that_json_would_change_is_refused(desk: Desk, functions: Any, value: Any) -> None:
    for arguments in ({"kwargs": {"epochs": value}}, {"overrides": ["code=/tmp"]}):
        with pytest.raises(clusterctl.UsageError, match=r"epochs cannot|bytes as JSON|code"):
            clusterctl.submit_function(functions.loss, 1, cluster="local", **arguments)
    assert desk.run_directories() == []


def test_outside_of_a_run_the_result_is_printed(
    functions: Any, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def typed(name: str, *args: Any) -> None:
        monkeypatch.setattr(sys, "argv", ["call", f"own_functions:{name}", json.dumps({"args": args, "kwargs": {}})])
        call.main()

    typed("Model.fit", 3)
    assert capfdbinary.readouterr().out == b"3\n"
    with pytest.raises(clusterctl.ClusterctlError, match="the result of own_functions:odd cannot be written as JSON"):
        typed("odd")


def test_a_run_of_something_else_has_no_result(desk: Desk) -> None:
    run = clusterctl.submit(program=["true"], cluster="local", overrides={"resources.nodes": 1})
    with pytest.raises(clusterctl.NotFoundError, match="has no result"):
        run.result(timeout=300)
