"""Kinds of jobs on which the faults are inflicted, too. docs/faults.md lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Its job holds `nodes` nodes, and as many of its runs as `at_once` can hold the same ones.

    With `sweep`, each run is an element of an array whose other element is hit by nothing, or by the same fault of a
    node. `shown` is what every start of the program prints.
    """

    words: str
    settings: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 2
    at_once: int = 20
    sweep: bool = False
    in_image: bool = False
    shown: str = "on its node, without GPUs"


PLAIN = Shape(words="")
SHAPES = {
    "image": Shape(
        words="in a container image",
        in_image=True,
        at_once=4,
        shown="in an image, without GPUs",
    ),
    "gpus": Shape(
        words="with one GPU for each rank",
        settings={"resources.gpus_per_node": "2"},
        at_once=2,
        shown="on its node, with 2 GPUs",
    ),
    "exclusive": Shape(
        words="alone on its nodes (`resources.exclusive`)", settings={"resources.exclusive": "true"}, at_once=3
    ),
    "sweep": Shape(words="as one of two runs of a sweep, one Slurm array", sweep=True),
    "spare": Shape(words="with a spare node", settings={"resources.spare_nodes": "1"}, nodes=3),
}
