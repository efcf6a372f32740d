"""Reddit: GraphSAGE on one large graph in the raw format of PyG's Reddit data set.

clusterctl submit reddit --set data.root=/data/Reddit --follow
torchrun --standalone --nproc-per-node 4 -m clusterctl.workloads.reddit jobs/cora.toml train.epochs=5
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from zipfile import BadZipFile

from clusterctl.errors import TaskError
from clusterctl.graph.storage import Graph, compressed, shared_graph
from clusterctl.runs.stages import Stage
from clusterctl.task.task import joined
from clusterctl.training.loop import fit
from clusterctl.training.node_classification import NodeClassification
from clusterctl.workloads.standalone import run_alone

if TYPE_CHECKING:
    from clusterctl.runs.events import Events
    from clusterctl.runs.layout import Attempt
    from clusterctl.runs.place import Place
    from clusterctl.runs.signals import StopRequest
    from clusterctl.spec import Job, RedditTrain

RAW_FILES = ("reddit_data.npz", "reddit_graph.npz")


def main(job: Job, place: Place, attempt: Attempt | None, events: Events, stop: StopRequest) -> None:
    train = cast("RedditTrain", job.train)
    identity = raw_identity(job.data.root)
    with joined(job, train.device, place, attempt, events, stop) as task:
        events.stage(Stage.LOADING)
        graph = shared_graph(task, "reddit", identity, lambda scratch: read_raw(Path(identity["root"]), scratch))
        fit(NodeClassification(graph, train, task), train, task)


def raw_identity(root: str | None) -> dict[str, Any]:
    """What tells one data set from another: where its raw files lie, their sizes and times. Raises TaskError."""
    hint = f"data.root names a folder with {' and '.join(f'raw/{name}' for name in RAW_FILES)}"
    if root is None:
        raise TaskError("workload reddit needs a data set, and data.root is not set", hint)
    identity: dict[str, Any] = {"root": str(Path(root).resolve())}
    for name in RAW_FILES:
        path = Path(identity["root"], "raw", name)
        try:
            status = path.stat()
        except OSError as error:
            raise TaskError(f"no data: {path}: {error.strerror}", hint) from None
        identity[name] = [status.st_size, status.st_mtime_ns]
    return identity


def read_raw(root: Path, scratch: Path) -> Graph:
    """Read the data set with PyG's own class, which would like to write beside the raw files; they may be read-only."""
    from torch_geometric.datasets import Reddit  # 1.6 s, and only one rank of all needs it

    class RawReddit(Reddit):  # type: ignore[misc]
        @property
        def processed_dir(self) -> str:
            return str(scratch)

    try:
        data = RawReddit(str(root))[0]
    except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
        raise TaskError(f"cannot read {root} as a Reddit data set: {error}", "are the raw files whole?") from error
    return Graph(
        *compressed(data.edge_index, data.num_nodes),
        x=data.x,
        y=data.y,
        train=data.train_mask.nonzero().squeeze(1),
        val=data.val_mask.nonzero().squeeze(1),
        test=data.test_mask.nonzero().squeeze(1),
        num_classes=int(data.y.max()) + 1,
    )


if __name__ == "__main__":
    run_alone("reddit", main)
