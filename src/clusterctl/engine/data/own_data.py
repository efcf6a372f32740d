"""Data that a user function loads: checked, and prepared again when its code or files change.

Every attribute of what it returns is used, refused with an error that names it, or named in one line as unused.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from clusterctl.engine.graph.storage import Recipe, shared
from clusterctl.engine.training.own.model import found
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from clusterctl.engine.graph.storage import Stored
    from clusterctl.engine.task.task import Task
    from clusterctl.shared.spec import Data

T = TypeVar("T", bound="Stored")

SPLITS = ("train", "val", "test")
_NOTES = "notes.txt"  # in the folder of the prepared data: what it does not use of the loaded
_SMALL_BYTES, _MOST_SMALL = 1 << 16, 1000  # files whose content is compared, too
_EXACT_IN_FLOAT32 = 1 << 24
_ROWS_AT_ONCE = 1 << 16


def own_recipe(data: Data, made: Callable[..., T], **reading: str) -> Recipe[T]:
    """How to prepare the data set that `data.load` loads. Raises TaskError.

    `made(result, name, notes, **reading)` converts its result; it gets the function's name, and adds what it does not
    use to the list `notes`. `reading` is a part of the prepared data's identity.
    """
    assert data.load is not None
    name = data.load
    load = found(name, "data.load")
    identity: dict[str, Any] = {
        "load": name,
        "made": made.__name__,  # two workloads may load the same data
        "edges": "with attributes, of all types",
        "times": True,
        "root": data.root and str(Path(data.root).resolve()),
    } | reading
    identity["code"] = code_digest(name.partition(":")[0])
    if data.root:
        identity["files"] = list(files_below(Path(data.root)))

    def build(scratch: Path) -> T:
        notes: list[str] = []
        prepared = made(load(data.root and Path(data.root)), name, notes, **reading)
        if notes:
            (scratch.parent / _NOTES).write_text(f"data.load = {name}: {'; '.join(notes)}\n")
        return prepared

    return Recipe("own", identity, build)


def prepared(task: Task, kind: Callable[..., T], recipe: Recipe[T]) -> T:
    """`shared` data; what is not used of it is printed in each run, not only in the one that prepares it."""
    value = shared(task, kind, *recipe)
    notes = task.cache / recipe.folder / _NOTES
    if task.place.rank == 0 and notes.exists():
        print(notes.read_text(), end="", flush=True)
    return value


class Given:
    """What the function `name` returned. The methods check and convert attributes of a graph, or of a part of one.

    They raise TaskError; `where` is the part, for messages, such as "graph 3: ". What is not used is added to `notes`.
    """

    def __init__(self, name: str, notes: list[str] | None = None) -> None:
        self.name, self.notes = name, [] if notes is None else notes

    def wrong(self, what: str, hint: str) -> TaskError:
        return TaskError(f"data.load = {self.name}: {what}", hint, Cause.USER)

    def single(self, result: Any, kind: str) -> Any:
        """The only graph in a `result`, which must be of PyG's class `kind`, or a data set or list of one."""
        hint = f"return one {kind} of torch_geometric.data"
        if _kind(result) not in ("Data", "HeteroData"):
            graphs = self.several(result, hint)
            if len(graphs) != 1:
                raise self.wrong(f"it returned {len(graphs)} graphs, and this workload trains on one", hint)
            (result,) = graphs
        if _kind(result) != kind:
            homogeneous = (
                'return its to_homogeneous(), or use "rgat" or your own model of workload "node-classification"'
            )
            hints = {"HeteroData": homogeneous, "Data": "this model trains on HeteroData"}
            raise self.wrong(f"it returned {type(result).__name__}", hints.get(_kind(result), hint))
        return result

    def parts(self, result: Any, is_part: Callable[[Any], bool]) -> dict[str, Any]:
        """The splits that a `result` has itself, as a dict of "train", "val" and "test" or three of what `is_part`."""
        if isinstance(result, dict):
            if set(result) == set(SPLITS):
                return {split: result[split] for split in SPLITS}
            keys = ", ".join(map(str, result)) or "no keys"
            hint = 'for splits of your own, return {"train": ..., "val": ..., "test": ...}'
            raise self.wrong(f"it returned dict with {keys}", hint)
        is_split = isinstance(result, tuple | list) and len(result) == len(SPLITS) and all(map(is_part, result))
        return dict(zip(SPLITS, result, strict=True)) if is_split else {}

    def several(self, result: Any, hint: str) -> list[Any]:
        """The graphs in a data set, a list or a batch."""
        if hasattr(result, "to_data_list"):  # a batch
            return list(result.to_data_list())
        if _kind(result):
            raise self.wrong("it returned one graph, and this workload trains on many", hint)
        is_sequence = hasattr(result, "__getitem__")  # PyG's data sets have no __iter__ of their own
        if isinstance(result, Tensor | str | dict) or not (is_sequence or hasattr(result, "__iter__")):
            raise self.wrong(f"it returned {type(result).__name__}", hint)
        return [result[number] for number in range(len(result))] if is_sequence else list(result)

    def tensor(self, store: Any, attribute: str, where: str = "") -> Tensor:
        """A dense tensor, on the CPU."""
        value = store[attribute] if attribute in store else None  # noqa: SIM401 - PyG's stores have no `get`
        if value is None:
            has = ", ".join(_attributes(store)) or "no attributes"
            hint = f"set {attribute}; it has {has}"
            if attribute == "edge_index" and "adj_t" in store:
                hint = "leave the transform ToSparseTensor out, which replaces it with adj_t"
            raise self.wrong(f"{where}it has no {attribute}", hint)
        if not isinstance(value, Tensor):
            hint = f"make it a tensor: data.{attribute} = torch.as_tensor(data.{attribute})"
            raise self.wrong(f"{where}{attribute} is {type(value).__name__}, not a tensor", hint)
        if hasattr(value, "as_tensor"):  # PyG's EdgeIndex, Index
            value = value.as_tensor()
        return value.detach().to_dense().cpu() if value.layout != torch.strided else value.detach().cpu()

    def features(self, store: Any, where: str = "") -> Tensor:
        """The features `x`, float32 [nodes, features]."""
        x = self.tensor(store, "x", where)
        if x.dim() != 2 or x.size(1) == 0:
            hint = "one row for each node: data.x = data.x.view(data.num_nodes, -1)"
            raise self.wrong(f"{where}x has shape {[*x.shape]}, not [nodes, features]", hint)
        if x.is_complex():
            raise self.wrong(f"{where}x is complex", "data.x = torch.view_as_real(data.x).flatten(1)")
        if not x.is_floating_point() and x.dtype != torch.bool and x.numel() and int(x.abs().max()) > _EXACT_IN_FLOAT32:
            hint = "number its values from 0 on, or scale them"
            raise self.wrong(f"{where}x has values up to {int(x.abs().max())}, which float32 cannot hold", hint)
        rows = x.float()
        finite = torch.cat([part.isfinite().all(1) for part in torch.split(rows, _ROWS_AT_ONCE)])
        if not finite.all():
            bad = (~finite).nonzero().squeeze(1)
            what = f"{where}x has NaN or infinity in {len(bad)} of {len(x)} rows, first in row {int(bad[0])}"
            raise self.wrong(
                what, "fill them, such as with data.x = data.x.nan_to_num(0, 0, 0), or leave the nodes out"
            )
        self.count(store, len(x), where)
        return rows

    def count(self, store: Any, nodes: int, where: str = "") -> None:
        """Check `num_nodes`, if it is set, against the number of rows of `x`."""
        if "num_nodes" in store and store["num_nodes"] not in (None, nodes):
            what = f"{where}num_nodes is {store['num_nodes']}, and x has {nodes} rows"
            raise self.wrong(what, "give x a row for each node, and leave num_nodes out")

    def edges(self, store: Any, targets: int, sources: int, where: str = "", attribute: str = "edge_index") -> Tensor:
        """`edge_index` or another list of edges, int64 [2, edges], between this many nodes."""
        edges = self.tensor(store, attribute, where)
        if edges.dim() != 2 or edges.size(0) != 2:
            hint = f"data.{attribute} = data.{attribute}.t()" if edges.dim() == 2 and edges.size(1) == 2 else ""
            hint = hint or "give sources in its first row and targets in its second"
            raise self.wrong(f"{where}{attribute} has shape {[*edges.shape]}, not [2, edges]", hint)
        if edges.numel() and (edges.is_floating_point() or edges.is_complex() or edges.dtype == torch.bool):
            what = f"{where}{attribute} is {_type(edges)}, which does not hold all node numbers exactly"
            raise self.wrong(what, "make it int64 where it is created; float32 is exact up to 2**24")
        edges = edges.long()
        for row, side, nodes in zip(edges, ("sources", "targets"), (sources, targets), strict=True):
            if row.numel() and not 0 <= int(row.min()) <= int(row.max()) < nodes:
                what = (
                    f"{where}{attribute} has {side} from {int(row.min())} to {int(row.max())}, beyond its {nodes} nodes"
                )
                raise self.wrong(what, f"number the nodes from 0 to {nodes - 1}")
        return edges

    def of_edges(self, store: Any, attribute: str, edges: int, where: str = "") -> Tensor | None:
        """Numbers of the edges, float32 [edges] or [edges, channels]; None, with a note, if they cannot be used."""
        if attribute not in store or store[attribute] is None:
            return None
        value = store[attribute]
        problem = ""
        if not isinstance(value, Tensor) or value.is_complex():
            problem = f"it is {_type(value) if isinstance(value, Tensor) else type(value).__name__}"
        else:
            value = self.tensor(store, attribute, where).float()
            wide = attribute == "edge_weight" and value.dim() == 2 and value.size(1) == 1
            value = value.squeeze(1) if wide else value
            if value.dim() not in ((1,) if attribute == "edge_weight" else (1, 2)) or len(value) != edges:
                problem = f"it has shape {[*value.shape]}, and there are {edges} edges"
            elif not value.isfinite().all():
                problem = "it has NaN or infinity"
        if problem:
            self.notes.append(f"{where}{attribute} is not used: {problem}")
        return None if problem else value

    def answers(self, store: Any, nodes: int, kind: str, where: str = "") -> Tensor:
        """`y` of each node.

        Of the kind "classes": classes, as in `labels`; "numbers": float [nodes, outputs]; "either": classes if they are
        one whole number for each node.
        """
        if kind == "either":
            y = self.tensor(store, "y", where)
            is_whole = not y.is_floating_point() and not y.is_complex() and y.dtype != torch.bool
            kind = "classes" if is_whole and y.numel() == nodes else "numbers"
        return self.labels(store, nodes, where) if kind == "classes" else self.numbers(store, nodes, where)

    def outputs(self, answers: Tensor) -> int:
        """How many outputs a model has for these `answers`."""
        return answers.size(1) if answers.is_floating_point() else self.number_of_classes(answers)

    def numbers(self, store: Any, rows: int, where: str = "") -> Tensor:
        """The numbers `y`, float [rows, outputs]; NaN where there is none."""
        y = self.tensor(store, "y", where)
        y = y[:, None] if y.dim() == 1 else y
        if y.dim() != 2 or len(y) != rows or not y.size(1):
            raise self.wrong(
                f"{where}y has shape {[*y.shape]}, not [{rows}] or [{rows}, outputs]",
                "give one row for each, with NaN where a number is unknown",
            )
        if y.is_complex():
            raise self.wrong(f"{where}y is complex", "data.y = torch.view_as_real(data.y).flatten(1)")
        if bool(y.isinf().any()):
            raise self.wrong(f"{where}y is infinite", "give finite numbers, or NaN where one is unknown")
        return y if y.dtype == torch.float64 else y.float()

    def labels(self, store: Any, nodes: int, where: str = "") -> Tensor:
        """The classes `y`, int64 [nodes]; below 0 for nodes without one."""
        y = self.tensor(store, "y", where)
        if y.dim() == 2 and y.size(1) == 1:  # OGB's shape
            y = y.squeeze(1)
        if tuple(y.shape) != (nodes,):
            several = y.dim() == 2 and len(y) == nodes
            hint = (
                'for several labels or numbers set train.loss, such as "bce_with_logits"; for one-hot classes, '
                "data.y = data.y.argmax(1)"
                if several
                else "give one class each"
            )
            what = "several labels for each node" if several else f"not [{nodes}]"
            raise self.wrong(f"{where}y has shape {[*y.shape]}: {what}", hint)
        return self.classes(y, where)

    def classes(self, y: Tensor, where: str = "") -> Tensor:
        """Whole numbers as int64; NaN, as in OGB's data, means that there is no label."""
        if y.is_complex():
            raise self.wrong(f"{where}y is complex", "give classes 0, 1, 2 ...")
        if y.is_floating_point():
            y = torch.where(y.isnan(), -1.0, y)
            if not torch.equal(y, y.round()) or bool(y.isinf().any()):
                first = y[y != y.round()][:1].tolist() or ["infinity"]
                what = (
                    f"{where}y has values such as {first[0]:.4g}" if first != ["infinity"] else f"{where}y is infinite"
                )
                hint = 'give classes 0, 1, 2 ...; for numbers, set train.loss = "mse", "l1" or "huber"'
                raise self.wrong(f"{what}, which are no classes", hint)
        return y.long()

    def number_of_classes(self, labels: Tensor) -> int:
        known = labels[labels >= 0]
        if not known.numel():
            raise self.wrong("y has no class from 0 on", "number the classes from 0 on")
        most = int(known.max()) + 1
        if most > max(2, len(labels)):
            what = f"y has classes up to {most - 1} for {len(labels)} examples"
            raise self.wrong(what, "number the classes from 0 on: data.y = data.y.unique(return_inverse=True)[1]")
        return most

    def splits(self, store: Any, labels: Tensor, where: str = "") -> dict[str, Tensor]:
        """The nodes of each split, int64, ascending, from bool masks of all nodes."""
        masks = {split: self._mask(store, f"{split}_mask", len(labels), where) for split in SPLITS}
        for number, one in enumerate(SPLITS):
            for other in SPLITS[number + 1 :]:
                if both := int((masks[one] & masks[other]).sum()):
                    what = f"{where}{both} nodes are in both {one}_mask and {other}_mask"
                    raise self.wrong(what, f"data.{one}_mask = data.{one}_mask & ~data.{other}_mask")
        chosen = {split: mask.nonzero().squeeze(1) for split, mask in masks.items()}
        if not chosen["train"].numel():
            raise self.wrong(f"{where}train_mask chooses no node", "choose some for training")
        if empty := [f"{split}_mask" for split in SPLITS if not chosen[split].numel()]:
            self.notes.append(f"{where}{' and '.join(empty)} choose no node, so there is no score of them")
        for split, nodes in chosen.items():
            if labels.is_floating_point():
                if nodes.numel() and bool(labels[nodes].isnan().all()):
                    raise self.wrong(f"{where}y is NaN for all nodes in {split}_mask", "leave some of them known")
            elif bare := int((labels[nodes] < 0).sum()):
                what = f"{where}{bare} nodes in {split}_mask are without a label"
                raise self.wrong(what, f"data.{split}_mask = data.{split}_mask & (data.y >= 0)")
        return chosen

    def _mask(self, store: Any, attribute: str, nodes: int, where: str) -> Tensor:
        mask = self.tensor(store, attribute, where)
        if mask.dim() == 2 and mask.size(1) == 1:
            mask = mask.squeeze(1)
        if mask.dim() == 2 and mask.size(0) == nodes:
            what = f"{where}{attribute} has {mask.size(1)} columns: several splits"
            raise self.wrong(what, f"choose one: data.{attribute} = data.{attribute}[:, 0]")
        hint = f"mask = torch.zeros({nodes}, dtype=torch.bool); mask[data.{attribute}] = True"
        whole = mask.dim() == 1 and mask.dtype != torch.bool and not mask.is_floating_point() and not mask.is_complex()
        if whole and (len(mask) != nodes or not bool(((mask == 0) | (mask == 1)).all())):
            raise self.wrong(f"{where}{attribute} is a list of numbers, not a mask of the nodes", hint)
        if tuple(mask.shape) != (nodes,):
            hint = "give one value for each node"
            raise self.wrong(f"{where}{attribute} has shape {[*mask.shape]}, and there are {nodes} nodes", hint)
        if mask.is_complex() or (mask.is_floating_point() and not bool(((mask == 0) | (mask == 1)).all())):
            raise self.wrong(
                f"{where}{attribute} is {_type(mask)}, not a mask", f"data.{attribute} = data.{attribute} > 0"
            )
        return mask != 0

    def unused(self, stores: Iterable[Any], used: Collection[str], where: str = "") -> None:
        """Note the attributes that are not `used`."""
        left = sorted({attribute for store in stores for attribute in _attributes(store)} - {*used, "num_nodes"})
        if left:
            self.notes.append(f"{where}{', '.join(left)} {'is' if len(left) == 1 else 'are'} not used")


def is_graph(value: Any, *kinds: str) -> bool:
    """Whether `value` is an instance of one of these classes of PyG, or, without any, of Data or HeteroData."""
    return _kind(value) in (kinds or ("Data", "HeteroData"))


def _kind(value: Any) -> str:
    """The class of PyG, "Data" or "HeteroData", that `value` is an instance of; empty for others, such as data sets."""
    names = {kind.__name__ for kind in type(value).__mro__ if kind.__module__.startswith("torch_geometric.")}
    if "TemporalData" in names or "Batch" in names:
        return "Data" if "Batch" in names and "Data" in names else ""
    return next((kind for kind in ("HeteroData", "Data") if kind in names), "")


def _attributes(store: Any) -> Sequence[str]:
    return [str(key) for key, value in store.to_dict().items() if value is not None]


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# --- what the prepared data depends on


def files_below(root: Path) -> Iterator[list[Any]]:
    """Each file below `root` in order: its path, its size, and its time, or its content if it is small.

    Raises TaskError if there is no `root`.
    """
    small = 0
    try:
        for path in _walk(root, set()):
            status = path.stat()
            entry: list[Any] = [str(path.relative_to(root)), status.st_size]
            if status.st_size <= _SMALL_BYTES and small < _MOST_SMALL:
                small += 1
                yield [*entry, hashlib.sha256(path.read_bytes()).hexdigest()]
            else:
                yield [*entry, status.st_mtime_ns]
    except OSError as error:
        message = f"cannot read data.root = {root}: {error.filename}: {error.strerror}"
        raise TaskError(message, "does it exist on all nodes?", Cause.DATA) from error


def code_digest(module: str) -> str:
    """A digest of the source of `module` and of all modules of the user's project that it imports, also indirectly."""
    roots = _project_folders(module)
    waiting, files, known = [module], set(), set()
    while waiting:
        name = waiting.pop()
        for end in range(1, name.count(".") + 2):  # a package's own file is imported first
            part = ".".join(name.split(".")[:end])
            if part in known:
                continue
            known.add(part)
            places = [root.joinpath(*part.split(".")) for root in roots]
            found = (path for at in places for path in (at / "__init__.py", at.with_name(f"{at.name}.py")))
            if (file := next((path for path in found if path.is_file()), None)) is not None:
                files.add(file)
                waiting += _imports_of(file, part)
    own = Path(getattr(sys.modules.get(module), "__file__", None) or os.devnull)
    if own.is_file():
        files.add(own)
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _walk(folder: Path, seen: set[tuple[int, int]]) -> Iterator[Path]:
    """The regular files in a folder, or the file itself; through links, but in no folder twice."""
    status = folder.stat()
    if not folder.is_dir():
        yield folder
        return
    if (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from _walk(path, seen)
        elif path.is_file():
            yield path


def _project_folders(module: str) -> list[Path]:
    """The folders on sys.path with the user's code: not those of Python, its packages and clusterctl."""
    others = {Path(path).resolve() for key, path in sysconfig.get_paths().items() if key in ("stdlib", "platstdlib")}
    ours = Path(__file__).resolve().parents[3]
    folders = [Path(path or os.curdir).resolve() for path in sys.path]
    file = getattr(sys.modules.get(module), "__file__", None)
    if file:
        up = len(module.split(".")) - (Path(file).stem != "__init__")
        folders.insert(0, Path(file).resolve().parents[up])
    return [
        folder
        for folder in dict.fromkeys(folders)
        if folder != ours
        and folder.is_dir()
        and not any(folder == other or other in folder.parents for other in others)
        and folder.name not in ("site-packages", "dist-packages")
    ]


def _imports_of(path: Path, module: str) -> Iterator[str]:
    """The names of the modules that a file may import, anywhere in it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (
                word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)
            )
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base:
                yield base
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)
