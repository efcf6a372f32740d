"""What the `forward` of a user's model takes, from its source, and why it cannot be called."""

from __future__ import annotations

import pytest

from clusterctl.shared.spec.forward import Forward, in_source


def source(arguments: str, body: str = "") -> str:
    return f"class Net(Module):\n    def forward({arguments}):\n        return x\n{body}\nclass Other:\n    pass\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("self, x, edge_index", Forward(("x", "edge_index"))),
        ("self, x, edge_index, edge_weight=None", Forward(("x", "edge_index"), ("edge_weight",))),
        ("self, x, /, edge_index, *, batch, p=0.5", Forward(("x", "edge_index", "batch"), ("p",))),
        ("self, data", Forward(("data",))),
        ("self, x, *others", Forward(("x",), (), "others")),
        ("self, x, edge_index, **others", Forward(("x", "edge_index"))),
    ],
)
def test_the_source_shows_the_arguments(arguments: str, expected: Forward) -> None:
    assert in_source(source(arguments), "Net") == expected


@pytest.mark.parametrize(
    "text",
    [
        source("self, x, edge_index", "    def layer(self, i, hop, x):\n        return x\n"),
        "Net = make()",
        "from elsewhere import Net",
        "def Net(features, classes):\n    return 1\n",
        "class Net(Base):\n    pass\n",
        "@wrapped\n" + source("self, x, adj_t"),
        "class Net(:",
        "x = 1\0",
        "",
        "(" * 5000,
    ],
)
def test_what_the_source_does_not_show_is_unknown(text: str) -> None:
    assert in_source(text, "Net") is None


@pytest.mark.parametrize(
    ("arguments", "takes_data"),
    [
        ("data", True),
        ("batch", True),
        ("batch, flag=1", True),
        ("batch, x=None", False),
        ("x, batch", False),
        ("x", False),
    ],
)
def test_a_batch_of_nothing_else_is_a_data(arguments: str, takes_data: bool) -> None:
    found = in_source(source(f"self, {arguments}"), "Net")
    assert found is not None
    assert found.takes_data == takes_data


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("self, x, edge_index", None),
        ("self, h, edge_index", None),
        ("self, data", None),
        ("self, batch", None),
        ("self, hops, x", None),
        ("self, hops, features, extra", None),
        ("self, x, edge_index, *, scale=2", None),
        ("self, x, edge_index, edge_attr, edge_weight, batch, batch_size, n_id", None),
        ("self, x, adj_t", "forward(x, adj_t): adj_t is not supported"),
        ("self, x, edge_index, adj_t=None", None),
        ("self, adj", "forward(adj): adj is not supported"),
        ("self, x, *others", "forward(x, *others): it is unknown what *others takes"),
        ("self, x, edge_index, time, p=1", "forward(x, edge_index, time, p=...): nobody fills time"),
        ("self, x, y", "forward(x, y): nobody fills y"),
        ("self", "forward(): it takes nothing"),
    ],
)
def test_a_forward_that_nobody_can_call_is_named(arguments: str, problem: str | None) -> None:
    form = in_source(source(arguments), "Net")
    assert form is not None
    assert (form.problem and form.problem[0]) == problem


def test_the_class_shows_the_same_as_its_source() -> None:
    class Net:
        def forward(self, x: int, edge_index: int, edge_weight: int | None = None, *, p: int, **rest: int) -> int:
            return x

    expected = in_source(source("self, x, edge_index, edge_weight=None, *, p, **rest"), "Net")
    assert Forward.of(Net().forward) == expected
