"""How near a training step comes to what the machine can do: its time beside a bound.

The bound adds up two parts. The products of the step, at the rate of one large product in the same precision. And the
bytes of its other operators, each of which reads its inputs and writes its outputs once (of a table that is gathered
from, the rows that are taken), at the rate of a large copy. A step may beat it: what one operator writes and the next
one reads may still be in a cache. Sampling is timed apart, and its bound is not known. The compiled loops of attention
count with the rows that they take and the sums that they add to, but not with their arithmetic: that is of vectors, not
of products, so the bounds of gat and rgat are too low.

The last columns say where the rest of a step goes: the time inside its products, which are smaller than the large one,
inside its other operators, and in neither, which is Python, torch's own cost per operator, and the compiled loops
(medians of as many further steps, each operator timed).

With --count nothing is timed: the work of a step is the same on every machine.

python benchmarks/step_bounds.py [reddit] [deep-sage] [synthetic] [taobao] [imdb-gin] [gat] [rgat]
    [--scale 0.1] [--threads 2] [--steps 15] [--count]
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gat_step
import rgat_step
import torch
from graph_classification_epoch import DATA, GIN
from node_steps import begin_alone, lone_task
from side_by_side import arguments
from torch import Tensor
from torch import distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from clusterctl.engine.data import taobao
from clusterctl.engine.data.graph_sets import raw_identity, read_raw
from clusterctl.engine.data.reddit import reddit_like
from clusterctl.engine.data.taobao import interactions, read_events
from clusterctl.engine.graph.blocks import linear
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.learner import Learner
from clusterctl.engine.training.objectives.graph import GraphClassification
from clusterctl.engine.training.objectives.link import LinkPrediction
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.engine.training.objectives.relation import RelationNodeClassification
from clusterctl.engine.workloads.synthetic import generate
from clusterctl.shared.spec import DeepSageTrain, RedditTrain, SyntheticTrain, TaobaoTrain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl.engine.graph.blocks import Neighborhoods
    from clusterctl.engine.training.epoch_plan import Batch
    from clusterctl.engine.training.objective import Objective

NAMES = ("reddit", "deep-sage", "synthetic", "taobao", "imdb-gin", "gat", "rgat")
AIM = 0.75
_SIDE, _COPIED = 2048, 1 << 28  # of the large product; bytes of the large copy
_GATHERED = {"index_select", "index", "gather", "embedding", "_embedding_bag", "_embedding_bag_forward_only"}
_SCATTERED = {"index_add_", "index_copy_", "index_put_", "scatter_add_", "_index_put_impl_"}
_FREE = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "detach", "alias"}


class Rates(NamedTuple):
    """What the machine reaches."""

    products: dict[str, float]  # precision -> multiplications and additions a second
    bytes: float  # a second, read and written


@dataclass
class Work(TorchDispatchMode):
    """Counts what the operators of a step must do."""

    products: int = 0  # multiplications and additions
    bytes: int = 0  # read and written by all other operators
    in_products: float = 0.0  # seconds
    in_others: float = 0.0

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        began = time.perf_counter()
        out = func(*args, **(kwargs or {}))
        passed = time.perf_counter() - began
        packet = func.overloadpacket
        if packet in flop_registry:
            self.in_products += passed
            self.products += flop_registry[packet](*args, **(kwargs or {}), out_val=out)
            return out
        self.in_others += passed
        if packet.__name__ not in _FREE and not is_view(func):
            self.bytes += moved_bytes(packet.__name__, func, args, kwargs or {}, out)
        return out


@contextmanager
def with_attention(work: Work) -> Iterator[None]:
    """Counts the compiled loops of attention, forward and backward, in which torch sees no operators."""
    from clusterctl.engine.graph import compiled  # imports numba

    loops = compiled.attend_compiled

    def counted(left: Tensor, right: Tensor, attention: Tensor, edges: Neighborhoods, *others: Any) -> Tensor:
        gathered, own = (
            count * left.size(1) * attention.element_size() for count in (edges.columns.numel(), len(right))
        )
        weights = edges.columns.numel() * len(attention) * attention.element_size()
        # Forward: sources' rows, targets' rows, the softmax, sums. Backward: the same, the gradients of the sums and of
        # the targets' rows, and those of the sources' rows, which are read and written again for each edge.
        work.bytes += 2 * (edges.columns.nbytes + edges.offsets.nbytes) + 2 * weights + 4 * gathered + 6 * own
        return loops(left, right, attention, edges, *others)

    compiled.attend_compiled = counted
    try:
        yield
    finally:
        compiled.attend_compiled = loops


def is_view(func: Any) -> bool:
    """Whether an operator returns another view of an input."""
    returned = func._schema.returns  # noqa: SLF001 - torch has no other name for it
    return any(value.alias_info is not None and not value.alias_info.is_write for value in returned)


def moved_bytes(name: str, func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Bytes that an operator reads and writes."""
    inputs, outputs = tensors((args, kwargs)), tensors(out)
    if name in _GATHERED:
        table, *others = inputs
        rows = others[0].numel() * (table.size(-1) if table.dim() > 1 and name != "gather" else 1)
        return rows * table.element_size() + sum(t.nbytes for t in (*others, *outputs))
    if name in _SCATTERED:
        _, *others = inputs
        return 2 * max(t.nbytes for t in others) + sum(t.nbytes for t in others)
    arguments = zip(func._schema.arguments, args, strict=False)  # noqa: SLF001 - as above
    changed = tensors([value for argument, value in arguments if argument.is_write])
    written = {t.data_ptr() for t in changed}
    fresh = [t for t in outputs if t.data_ptr() not in written]
    return sum(t.nbytes for t in (*inputs, *changed, *fresh))


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def measured_rates() -> Rates:
    """The machine's rates, by the number of threads that torch has."""
    products = {}
    for precision in ("float32", "bfloat16"):
        a, b = torch.rand(2, _SIDE, _SIDE).to(getattr(torch, precision))
        products[precision] = 2 * _SIDE**3 / best(lambda a=a, b=b: linear(a, b))
    source = torch.zeros(_COPIED, dtype=torch.uint8)
    target = torch.empty_like(source)
    return Rates(products, 2 * _COPIED / best(lambda: target.copy_(source)))


def best(work: Callable[[], object]) -> float:
    """The least seconds of ten, after two to warm up."""
    times = []
    for _ in range(12):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times[2:])


def workloads(name: str, scale: float, folder: Path) -> Iterator[tuple[str, Any, Callable[[Any], Objective[Any]]]]:
    """What is trained on the data of that name: a title, its settings, and the objective for them."""
    task = lone_task()
    if name == "taobao":
        taobao.write(folder, 0.02, seed=0)
        shop = interactions(read_events(folder), TaobaoTrain().together, best_auc=0.0)
        for narrow in narrowed(TaobaoTrain()):
            yield f"taobao, {narrow.precision}", narrow, lambda train: LinkPrediction(shop, train, task)
    elif name == "imdb-gin":
        graphs = read_raw(raw_identity(str(DATA)), folder)
        for narrow in narrowed(GIN):
            yield f"imdb-gin, {narrow.precision}", narrow, lambda train: GraphClassification(graphs, train, task, 0)
    elif name == "gat":
        graph = reddit_like(scale)
        for narrow in narrowed(gat_step.TRAIN):
            yield f"gat, {narrow.precision}", narrow, lambda train: OwnNodeClassification(graph, train, task)
    elif name == "rgat":
        relations = rgat_step.igb_graph(1e-4)
        for narrow in narrowed(rgat_step.TRAIN):
            yield f"rgat, {narrow.precision}", narrow, lambda train: RelationNodeClassification(relations, train, task)
    else:
        base = {"reddit": RedditTrain(), "deep-sage": DeepSageTrain(), "synthetic": SyntheticTrain()}[name]
        graph = generate(base.avg_num_nodes, 0) if isinstance(base, SyntheticTrain) else reddit_like(scale)
        for narrow in narrowed(base):
            yield f"{name}, {narrow.precision}", narrow, lambda train: NodeClassification(graph, train, task)
        fast = replace(base, precision="bfloat16", sampling="labor", cache_first_aggregation=True)
        yield f"{name}, bfloat16, LABOR and cached", fast, lambda train: NodeClassification(graph, train, task)


def narrowed(train: Any) -> Iterator[Any]:
    for precision in ("float32", "bfloat16"):
        yield replace(train, precision=precision)


def measure(train: Any, make: Callable[[Any], Objective[Any]], steps: int) -> tuple[float, float, Work]:
    """Seconds of sampling, of the rest of a step (medians; 0 without `steps`), and the work of the rest."""
    objective = make(train)
    learner = Learner(objective, train, lone_task())
    plan = EpochPlan(objective.seeds, train.batch_size, seed=0, rank=0, world_size=1)
    batches: Iterator[Batch] = (batch for epoch in count(1) for batch in plan.batches(epoch))
    objective.model.train()
    times = []
    for batch in (next(batches) for _ in range(steps + 3 if steps else 1)):
        began = time.perf_counter()
        prepared = objective.prepare(batch)
        between = time.perf_counter()
        learner.train_step(batch, prepared, 1.0, checkpoint_due=False).reading.read()
        times.append((between - began, time.perf_counter() - between))
    sampling, rest = (statistics.median(column) for column in zip(*(times[3:] or [(0.0, 0.0)]), strict=True))
    works, is_compiled = [], isinstance(objective, GraphClassification) and objective.compiled is not None
    if is_compiled:  # torch sees no operators: count those of the same steps in a training too short to compile them
        train = replace(train, epochs=1)
        objective = make(train)
        learner = Learner(objective, train, lone_task())
    for batch in (next(batches) for _ in range(max(1, steps))):
        prepared = objective.prepare(batch)
        works.append(work := Work())
        with with_attention(work), work:
            learner.train_step(batch, prepared, 1.0, checkpoint_due=False)
    work.in_products = math.nan if is_compiled else statistics.median(one.in_products for one in works)
    work.in_others = math.nan if is_compiled else statistics.median(one.in_others for one in works)
    return sampling, rest, work


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(NAMES))
    words.add_argument("--scale", type=float, default=0.1, help="of Reddit's number of nodes")
    words.add_argument("--threads", type=int, default=2)
    words.add_argument("--steps", type=int, default=15)
    words.add_argument("--count", action="store_true", help="only count: multiplications, additions and bytes")
    options = words.parse_args()
    begin_alone(options.threads)
    if options.count:
        print("| row | products | bytes of the other operators |\n| --- | --- | --- |")
        for title, train, make in each(options):
            _, _, work = measure(train, make, 0)
            print(f"| {title} | {work.products / 1e9:.2f} GFLOP | {work.bytes / 1e9:.3f} GB |", flush=True)
        dist.destroy_process_group()
        return
    rates = measured_rates()
    peaks = ", ".join(f"{name} {rate / 1e9:.0f} GFLOP/s" for name, rate in rates.products.items())
    print(f"{options.threads} threads; products {peaks}; memory {rates.bytes / 1e9:.1f} GB/s\n")
    print(
        "| row | sampling | the rest of a step | products | bytes | bound | share (aim 75 %) "
        "| in products | in other operators | in neither |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for title, train, make in each(options):
        sampling, rest, work = measure(train, make, options.steps)
        products = work.products / rates.products[train.precision]
        moved = work.bytes / rates.bytes
        cells = [f"{1e3 * seconds:.1f} ms" for seconds in (sampling, rest, products, moved, products + moved)]
        inside = (work.in_products, work.in_others, rest - work.in_products - work.in_others)
        profile = " | ".join("not seen" if math.isnan(seconds) else f"{1e3 * seconds:.1f} ms" for seconds in inside)
        print(f"| {title} | {' | '.join(cells)} | {(products + moved) / rest:.0%} | {profile} |", flush=True)
    dist.destroy_process_group()


def each(options: Any) -> Iterator[tuple[str, Any, Callable[[Any], Objective[Any]]]]:
    """`workloads` of all names that the options list."""
    for name in options.workloads or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            yield from workloads(name, options.scale, Path(folder))


if __name__ == "__main__":
    main()
