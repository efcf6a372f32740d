"""GPU results compared with the CPU's: devices of ranks and threads, losses of every workload, sums over ranks."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tomllib
from contextlib import closing
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from gpu_rows import Row, compared
from node_steps import lone_task
from torch import distributed as dist

from clusterctl.engine.data.graph_sets import collection_of
from clusterctl.engine.data.own_links import links_of
from clusterctl.engine.data.reddit import reddit_like
from clusterctl.engine.graph.collection import Collection, joined_graphs
from clusterctl.engine.graph.recommender import ITEM, OF_USER, TOGETHER, USER
from clusterctl.engine.graph.storage import Graph, compressed, load, save
from clusterctl.engine.task.task import choose_device, gpu_identity, joined, round_to_tf32
from clusterctl.engine.task.worker import Worker
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.learner import Learner
from clusterctl.engine.training.loop import CapturedStep, prefetched
from clusterctl.engine.training.objectives.graph import GraphClassification, OwnGraphClassification
from clusterctl.engine.training.objectives.link import Interactions, LinkPrediction
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.engine.training.objectives.own_link import OwnLinkPrediction
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.engine.training.objectives.relation import RelationNodeClassification
from clusterctl.engine.training.objectives.typed_link import TypedLinkPrediction
from clusterctl.engine.training.objectives.typed_node import TypedNodeClassification
from clusterctl.engine.workloads.node_classification import graph_or_relations
from clusterctl.shared.node.events import Context
from clusterctl.shared.spec import (
    GraphClassificationTrain,
    NodeClassificationTrain,
    RedditTrain,
    SyntheticTrain,
    TaobaoTrain,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.objective import Objective
    from clusterctl.shared.spec import LoopTrain

_CLOSE = 1e-5  # for losses in float32
_EXACT = 1e-6  # for a product in float32
_NORMS = 6  # layers with BatchNorm of a model
_SCALE = 0.005  # of Reddit, for losses: 1,165 nodes
_BATCH = 64  # seeds of all ranks
_EXAMPLES = Path(__file__).parents[1] / "docs" / "examples" / "pyg"
_OWN = {  # users' classes of each form: weighted edges, graphs, links; several types with embeddings, times, links
    "graphconv": OwnNodeClassification,
    "zinc_gine": OwnGraphClassification,
    "link_mlp": OwnLinkPrediction,
    "rgcn": TypedNodeClassification,
    "shop": TypedNodeClassification,
    "purchases": TypedLinkPrediction,
}
_WAITS = "zinc_gine"  # PyG's global_add_pool reads how many graphs there are


def devices(gpus: int) -> Iterator[Row]:
    """Every local rank has its own GPU; a rank with a single visible GPU uses that one."""
    found = [choose_device("cuda", gpus, gpus, rank) for rank in range(gpus)]
    identities = {gpu_identity(device) for device in found}
    names = ", ".join(sorted({torch.cuda.get_device_name(device) for device in found})) or "none"
    yield Row("GPUs", f"{gpus}: {names}, torch {torch.__version__}")
    if gpus:
        alone = choose_device("cuda", 1, 1, gpus - 1)
        yield Row(
            "a GPU for each local rank", f"{len(identities)} of {gpus}", len(identities) == gpus and not alone.index
        )


def threads(gpus: int) -> Iterator[Row]:
    """A thread that prepares batches uses its rank's GPU, and a stream beside that of the steps."""
    if not gpus:
        return
    right = 0
    for number in range(gpus):
        device = torch.device("cuda", number)
        with Worker("prefetch", device) as worker:
            used, stream = worker.submit(lambda: (torch.cuda.current_device(), torch.cuda.current_stream())).result()
        right += used == number and stream != torch.cuda.current_stream(device)
    yield Row("threads on their rank's GPU, with a stream of their own", f"{right} of {gpus}", right == gpus)


def tf32(device: torch.device) -> Iterator[Row]:
    """The error of a product of float32 matrices, relative to its largest number, without and with `train.tf32`."""
    random = torch.Generator().manual_seed(0)
    one, other = (torch.randn(1024, 1024, generator=random) for _ in range(2))
    exact = one.double() @ other.double()
    for is_on in (True, False):  # as in a run, it stays off
        round_to_tf32(is_on)
        found = (one.to(device) @ other.to(device)).cpu().double()
        error = float((found - exact).abs().max() / exact.abs().max())
        title = f"error of a product with train.tf32 {'on' if is_on else 'off'}"
        yield Row(title, f"{error:.1e}") if is_on else compared(title, error, _EXACT)


def losses(device: torch.device, steps: int) -> Iterator[Row]:
    """The losses of every workload on `device`, compared with the CPU."""
    graph = reddit_like(_SCALE)
    for name, (train, make) in (_workloads(graph) | _examples()).items():
        expected = trained(make, train, torch.device("cpu"), steps)
        title = f"{name}: losses of {steps} steps compared with the CPU's"
        yield compared(title, _difference(trained(make, train, device, steps), expected), _CLOSE)
        if isinstance(train, RedditTrain) and train.sampling == "uniform" and device.type == "cuda":
            repeated = trained(make, replace(train, cuda_graph=True), device, steps)
            yield compared(f"{name}: the same as CUDA graphs", _difference(repeated, expected), _CLOSE)
    train = RedditTrain(batch_size=_BATCH)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "graph.pt"
        save(graph, path)
        mapped = load(Graph, path)
        expected = trained(lambda task: NodeClassification(graph, train, task), train, torch.device("cpu"), steps)
        for name, where in (
            ("edges and features on the host", {"host": True}),
            ("features on disk", {"cache": mapped.x.nbytes // 4}),
            ("edges on the host, features on disk", {"host": True, "cache": mapped.x.nbytes // 4}),
        ):
            found = trained(partial(_placed, mapped, train, where), train, device, steps)
            yield compared(f"reddit, {name}: losses of {steps} steps", _difference(found, expected), _CLOSE)


def _placed(graph: Graph, train: RedditTrain, where: dict[str, Any], task: Task) -> NodeClassification:
    return NodeClassification(graph, train, task, **where)


def waiting(device: torch.device, steps: int) -> Iterator[Row]:
    """Whether the host waits for the GPU in a step of any workload; losses are read outside of it, a step late.

    The first step is not checked: it looks at the scores of users' models.
    """
    if device.type != "cuda":
        return
    task = replace(lone_task(), device=device)
    for name, (train, make) in (_workloads(reddit_like(_SCALE)) | _examples()).items():
        if name == _WAITS:
            continue
        objective = make(task)
        learner = Learner(objective, train, task)
        plan = EpochPlan(objective.seeds, _BATCH, train.seed, 0, 1)
        waited = ""
        task.clock.restart("sampling")
        for number, batch in enumerate(itertools.islice(plan.batches(1), steps)):
            prepared = objective.prepare(batch)
            torch.cuda.set_sync_debug_mode("error" if number else "default")
            try:
                learner.train_step(batch, prepared, 1.0, checkpoint_due=False)
            except RuntimeError as error:  # torch's, with the name of what waits
                waited = str(error).splitlines()[0]
            finally:
                torch.cuda.set_sync_debug_mode("default")
            if waited:
                break
        yield Row(f"{name}: steps that wait for the GPU", waited.replace("|", "/") or "none", not waited)


def ranks(gpus: int, steps: int) -> Iterator[Row]:
    """The same losses on 1 to n GPUs over NCCL, or without a GPU on two ranks over gloo."""
    counts = [count for count in (1, 2, 4, 8, gpus) if 1 <= count <= gpus] or [1, 2]
    found = {count: _on_ranks(count, "cuda" if gpus else "cpu", steps) for count in sorted({*counts})}
    for count, got in found.items():
        title = f"losses on {count} rank{'s' * (count > 1)}, {got['backend']}, compared with one"
        yield compared(title, _difference(got["losses"], found[1]["losses"]), _CLOSE)
    counts = found[max(found)]["collectives"]
    yield Row(f"collectives of a step for {_NORMS} BatchNorms, {max(found)} ranks", f"{counts}", counts <= 1)


def trained(make: Callable[[Task], Objective[Any]], train: LoopTrain, device: torch.device, steps: int) -> list[float]:
    """The losses of `steps` steps on one rank."""
    return _losses(make(replace(lone_task(), device=device)), train, replace(lone_task(), device=device), steps)


def _losses(objective: Objective[Any], train: LoopTrain, task: Task, steps: int) -> list[float]:
    learner = Learner(objective, train, task)
    captured = getattr(train, "cuda_graph", False)
    step = CapturedStep(learner, task.device) if captured else learner
    plan = EpochPlan(objective.seeds, _BATCH, train.seed, task.place.rank, task.place.world_size)
    batches = (batch for epoch in itertools.count(1) for batch in plan.batches(epoch))
    found = []
    objective.model.train()
    task.clock.restart("sampling")
    prepare = (lambda _: None) if captured else objective.prepare
    with closing(prefetched(itertools.islice(batches, steps), prepare, task.device)) as ahead:
        for batch, prepared in ahead:
            found.append(step.train_step(batch, prepared, 1.0, checkpoint_due=False).reading.read()[0])
    return found


def _workloads(graph: Graph) -> dict[str, tuple[LoopTrain, Callable[[Task], Objective[Any]]]]:
    reddit = RedditTrain(batch_size=_BATCH)
    nodes = {
        "reddit": reddit,
        "reddit, first aggregation cached": replace(reddit, cache_first_aggregation=True),
        "reddit, LABOR": replace(reddit, sampling="labor"),
        "synthetic": SyntheticTrain(batch_size=_BATCH, fan_out=(10, 10)),
    }
    gat = NodeClassificationTrain(model="gat", batch_size=_BATCH, fan_out=(10, 5))
    gin, taobao = GraphClassificationTrain(batch_size=_BATCH), TaobaoTrain(batch_size=_BATCH)
    graphs, shop = _graphs(), _shop()
    made: dict[str, tuple[LoopTrain, Callable[[Task], Objective[Any]]]] = {
        name: (train, lambda task, train=train: NodeClassification(graph, train, task)) for name, train in nodes.items()
    }
    made["gat"] = gat, lambda task: OwnNodeClassification(graph, gat, task)
    made["imdb-gin"] = gin, lambda task: GraphClassification(graphs, gin, task, 0)
    made["taobao"] = taobao, lambda task: LinkPrediction(shop, taobao, task)
    return made


def _examples() -> dict[str, tuple[LoopTrain, Callable[[Task], Objective[Any]]]]:
    """The classes of `_OWN` in docs/examples/pyg on their data, and R-GAT on the data of one of them."""
    sys.path.insert(0, str(_EXAMPLES))
    made: dict[str, tuple[LoopTrain, Callable[[Task], Objective[Any]]]] = {}
    for name, kind in _OWN.items():
        job = Context({**tomllib.loads((_EXAMPLES / f"{name}.toml").read_text()), "name": name}).job
        module, _, loader = str(job.data.load).partition(":")
        result, train = getattr(import_module(module), loader)(None), replace(job.train, batch_size=_BATCH)
        if kind is OwnGraphClassification:
            data: Any = collection_of(result, name, answers="numbers")
        else:
            data = links_of(result, name) if "link" in job.workload else graph_or_relations(result, name)
        made[name] = train, partial(_on, kind, data, train)
        if name == "rgcn":
            rgat = replace(train, model="rgat")
            made["rgat"] = rgat, partial(_on, RelationNodeClassification, data, rgat)
    return made


def _on(kind: Any, data: Any, train: LoopTrain, task: Task) -> Objective[Any]:
    objective: Objective[Any] = kind(data, train, task)
    return objective


def _graphs() -> Collection:
    """Five hundred small random graphs of two classes, of different sizes."""
    random = torch.Generator().manual_seed(0)
    graphs = []
    for size in torch.randint(5, 30, (500,), generator=random).tolist():
        pairs = torch.randint(size, (2, 4 * size), generator=random)
        graphs.append((size, torch.cat([pairs, pairs.flip(0)], 1)))
    bounds, edges = joined_graphs(graphs)
    nodes = int(bounds[-1])
    return Collection(bounds, *compressed(edges, nodes), torch.empty(nodes, 0), torch.arange(500) % 2, 2)


def _shop(users: int = 2000, items: int = 3000) -> Interactions:
    """Random users and items; each split has as many pairs as negatives."""
    random = torch.Generator().manual_seed(0)

    def pairs(count: int, *bounds: int) -> torch.Tensor:
        return torch.stack([torch.randint(bound, (count,), generator=random) for bound in bounds])

    of_user = compressed(pairs(20 * users, items, users), users, items)
    together = compressed(pairs(10 * items, items, items), items)
    names = ("val", "val_negatives", "test", "test_negatives")
    return Interactions(
        num_nodes={USER: users, ITEM: items},
        indptr={OF_USER: of_user[0], TOGETHER: together[0]},
        indices={OF_USER: of_user[1], TOGETHER: together[1]},
        x={},
        best_auc=float("nan"),
        **{name: pairs(100, users, items).int() for name in names},
    )


def _difference(found: list[float], expected: list[float]) -> float:
    """The largest difference, relative if losses exceed 1."""
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(found, expected, strict=True))


def _on_ranks(count: int, device: str, steps: int) -> dict[str, Any]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    done = subprocess.run(
        [*launcher, __file__, device, str(steps)],
        env={**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _rank(device: str, steps: int) -> None:
    """One of several ranks, under torchrun."""
    world = int(os.environ["WORLD_SIZE"])
    train = {"device": device, "batch_size": None, "global_batch_size": _BATCH}
    context = Context({"name": "gpu-check", "workload": "reddit", "train": train})
    with joined(context) as task:
        settings = context.train(RedditTrain)
        graph = reddit_like(_SCALE)
        found = _losses(NodeClassification(graph, settings, task), settings, task, steps)
        collectives = _collectives_for_buffers(graph, task)
        if task.place.rank == 0:
            values = {"losses": found, "backend": dist.get_backend(), "ranks": world, "collectives": collectives}
            print(json.dumps(values))


class Norms(torch.nn.Module):
    """Layers with BatchNorm, whose statistics all ranks share."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        widths = [features, *[16] * (_NORMS - 1), classes]
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*pair) for pair in itertools.pairwise(widths))
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm1d(width) for width in widths[1:])

    def layer(self, i: int, hop: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        x = x[: hop.targets]
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(layer(x))
        return x


def _collectives_for_buffers(graph: Graph, task: Task) -> int:
    """The collectives on the device of a step before its forward: those that average buffers."""
    sys.modules.setdefault("gpu_correctness", sys.modules["__main__"])
    train = NodeClassificationTrain(model="gpu_correctness:Norms", fan_out=(5,), batch_size=_BATCH)
    objective = OwnNodeClassification(graph, train, task)
    learner = Learner(objective, train, task)
    plan = EpochPlan(objective.seeds, _BATCH, train.seed, task.place.rank, task.place.world_size)
    counts: list[int] = []
    all_reduce = dist.all_reduce

    def counted(tensor: torch.Tensor, *given: Any, **options: Any) -> Any:
        counts[-1] += tensor.is_floating_point()  # not the flags that ranks exchange on the host
        return all_reduce(tensor, *given, **options)

    dist.all_reduce = counted
    task.clock.restart("sampling")
    for batch in itertools.islice(plan.batches(1), 4):
        prepared = objective.prepare(batch)
        counts.append(0)
        learner.train_step(batch, prepared, 1.0, checkpoint_due=False)
    dist.all_reduce = all_reduce
    return counts[-1] - 1  # the one of the gradients


if __name__ == "__main__":
    if sys.argv[1:] in ([], ["--help"]):
        print(__doc__)
    else:
        _rank(sys.argv[1], int(sys.argv[2]))
