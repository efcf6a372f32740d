"""Training steps of the attention networks: ours and an expert's use of PyG's layers, in each precision."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from node_steps import begin_alone, our_step
from side_by_side import arguments, compare
from torch import distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

    from side_by_side import Timed

    from clusterctl.shared.spec import NodeClassificationTrain


WARM_UP = 10  # pairs: tensors differ in size from step to step, and both sides' first ones let the heap grow


def side_by_side(
    description: str,
    name: str,
    generate: Callable[[float], Any],
    train: NodeClassificationTrain,
    kind: Any,
    expert_step: Callable[[Any, NodeClassificationTrain], Timed],
    aim: float,
    scale: float,
) -> None:
    """A whole benchmark: parse the command line, make the graph, compare an objective of this `kind` with the expert's.

    `aim` is how many times faster ours should be.
    """
    words = arguments(description)
    words.add_argument("precisions", nargs="*", metavar="PRECISION", default=["float32", "bfloat16"])
    words.add_argument("--scale", type=float, default=scale, help="relative to the real data set")
    words.add_argument("--threads", type=int, default=2)
    words.add_argument("--runs", type=int, default=10)
    options = words.parse_args()
    begin_alone(options.threads)
    graph = generate(options.scale)
    print(f"{name} at {options.scale:g} of the real size, {options.threads} threads\n")
    for precision in options.precisions:
        chosen = replace(train, precision=precision)
        ours = ("clusterctl", our_step(graph, chosen, kind))
        rival = ("expert's PyG, sampling not timed", expert_step(graph, chosen))
        title = f"{name}, one step in {precision}"
        compare(title, ours, rival, bound=1 / aim, runs=options.runs, warm_up=WARM_UP)
    dist.destroy_process_group()
