"""The program behind `clusterctl data`, which generates or downloads data sets. Needs torch, which may be missing.

python -m clusterctl.engine.data.data_sets generate NAME SCALE SEED ROOT
python -m clusterctl.engine.data.data_sets prepare NAME ROOT CACHE ORDER DISK_PRECISION

A NAME is reddit, taobao, ogbn-arxiv, ogbn-products, ogbn-papers100M, ogbn-mag or igb-heterogeneous.
"""

from __future__ import annotations

import http.client
import os
import shlex
import shutil
import stat
import sys
import time
import urllib.error
import urllib.request
import uuid
import zipfile
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.shared.errors import Cause, ClusterctlError, TaskError, UsageError
from clusterctl.shared.spec.train import IGB_ARRAYS, OGB_ARCHIVES, OGB_RELATIONS, OGB_TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clusterctl.engine.graph.storage import Recipe

_BYTES_AT_ONCE = 1 << 20
_TIMEOUT = 60.0  # seconds without a byte
_PARTIAL, _BEYOND_THE_END = 206, 416
_BAR_WIDTH = 30
_SCALES = ((10**9, "G"), (10**6, "M"), (10**3, "k"))
_INTERRUPTED = 130
IGB = "igb-heterogeneous"
_OGB = "https://snap.stanford.edu/ogb/data/nodeproppred"
_OGB_DATA_SETS = {  # archive, contents, and the job to try it with
    "ogbn-arxiv": ("arxiv.zip", OGB_TABLES, "reddit"),
    "ogbn-products": ("products.zip", OGB_TABLES, "reddit"),
    "ogbn-papers100M": ("papers100M-bin.zip", OGB_ARCHIVES, "papers100m"),
    "ogbn-mag": ("mag.zip", OGB_RELATIONS, "reddit"),
}


class DataSet(NamedTuple):
    url: str  # empty if its owners' own program downloads it
    raw_files: tuple[str, ...]  # names of files in `raw`, or patterns of paths in the folder of the data set
    recipe: Callable[[Path], Recipe[Any]]
    job: str = ""  # to try it with
    is_graph: bool = True  # prepared as a `Graph`, of one node type

    @property
    def parts(self) -> tuple[str, ...]:
        """Patterns of paths in the folder of the data set."""
        return tuple(part if "/" in part else f"raw/{part}" for part in self.raw_files)


def data_set(name: str) -> DataSet:
    """The data set named `name`. URLs are those in PyG's classes and OGB's list."""
    from clusterctl.engine.data import igb, ogb

    if name == IGB:
        return DataSet("", IGB_ARRAYS, lambda root: igb.recipe(root, undirected=True), "igbh-generated", False)
    if name in _OGB_DATA_SETS:
        file, parts, job = _OGB_DATA_SETS[name]
        return DataSet(f"{_OGB}/{file}", parts, lambda root: ogb.recipe(root, undirected=True), job)

    from torch_geometric import datasets  # here, so that a missing package becomes a message

    from clusterctl.engine.data import reddit, taobao
    from clusterctl.shared.spec import TaobaoTrain

    if name == "reddit":
        return DataSet(datasets.Reddit.url, reddit.RAW_FILES, reddit.recipe, name)
    together = TaobaoTrain().together
    return DataSet(datasets.Taobao.url, (taobao.RAW_FILE,), lambda root: taobao.recipe(root, together), name, False)


def generate(name: str, scale: float, seed: int, root: Path) -> str:
    """Write the data set into `root`, atomically; returns a summary. Raises UsageError if there is one already."""
    from clusterctl.engine.data import igb, ogb_like, reddit, taobao

    write, score, unit = reddit.write, "accuracy", "edges"
    if name == IGB:
        write = igb.write
    elif name in _OGB_DATA_SETS:
        write = partial(ogb_like.write, name)
    elif name != "reddit":
        write, score, unit = taobao.write, "AUC", "events"
    if existing := [part for part in ("raw", "processed") if (root / part).exists()]:
        raise UsageError(f"a data set exists already: {root}/{existing[0]}", "use another --root, or remove it")
    root.mkdir(parents=True, exist_ok=True)
    building = root / f".{uuid.uuid4().hex}"
    try:
        building.mkdir()
        with _progress_bar(f"generating {name}", unit) as show:
            best = write(building, scale, seed, show)
        for part in sorted(
            building.iterdir(), reverse=True
        ):  # `raw` or `processed` last: it marks the data set as complete
            part.replace(root / part.name)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return f"{root}: the best possible {score} is {best:.4f}"


def prepare(name: str, root: Path, cache: Path, order: str = "given", disk_precision: str = "given") -> str:
    """Download what PyG or OGB would to `root`, and convert it for the runs that share `cache`; returns a summary.

    Existing files are kept. Raises TaskError, and UsageError if the data set cannot be arranged.
    """
    found = data_set(name)
    arrangement = {"order": order, "disk_precision": disk_precision}
    settings = [f"data.{key}={value}" for key, value in arrangement.items() if value != "given"]
    if settings and not found.is_graph:
        raise UsageError(f"{name} has several types of nodes", "leave --order and --disk-precision out")
    missing = [part for part in found.parts if not any(root.glob(part))]
    if missing and not found.url:
        hint = f"download it with its authors' program, or generate one: clusterctl data generate {name} --root DIR"
        raise TaskError(f"{root} lacks {', '.join(missing)}", hint, Cause.DATA)
    if missing:
        print(f"{root} lacks {', '.join(missing)}", file=sys.stderr)
        download(found, name, root)
    from clusterctl.engine.graph.features.arrangement import arranged
    from clusterctl.engine.graph.storage import whole
    from clusterctl.shared.record.once import prepared_once

    print(f"converting {root}", file=sys.stderr)
    recipe = arranged(found.recipe(root), order, disk_precision)
    prepared_once(cache / recipe.folder, recipe.prepare, whole=whole)
    words = [word for setting in (f"data.root={root}", *settings) for word in ("--set", setting)]
    return f"ready: {root}; try: {shlex.join(['clusterctl', 'submit', found.job, *words])}"


def download(found: DataSet, name: str, root: Path) -> None:
    """Fetch the archive and unpack its raw files, each atomically."""
    archive = root / f"{name}.zip"
    if not archive.exists():
        with _progress_bar(f"downloading {name}", "B") as show:
            fetch(found.url, archive, show)
    try:
        with zipfile.ZipFile(archive) as content:
            for member, path in members(content.namelist(), found.raw_files):
                path = root / path
                path.parent.mkdir(parents=True, exist_ok=True)
                aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
                with content.open(member) as source, aside.open("xb") as target:
                    shutil.copyfileobj(source, target, _BYTES_AT_ONCE)
                aside.replace(path)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        archive.unlink()
        raise TaskError(
            f"{found.url} is not the data set: {error}", "run the same command again to restart the download"
        ) from None
    archive.unlink()


def members(names: Sequence[str], raw_files: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """The required members of an archive, and the path of each in the data set's folder. Raises KeyError."""
    for wanted in raw_files:
        found = [path for path in map(PurePosixPath, names) if path.match(wanted) and ".." not in path.parts]
        if not found:
            raise KeyError(f"it has no {wanted}")
        for path in found:
            place = Path(*path.parts[-len(Path(wanted).parts) :])
            yield str(path), place if len(place.parts) > 1 else "raw" / place


def fetch(url: str, target: Path, progress: Callable[[int, int], None] = lambda *_: None) -> None:
    """Download `url` to `target`, which appears when it is complete. Raises TaskError.

    Until then it grows in NAME.part, from which the next call continues if the server supports ranges.
    """
    part = target.with_name(f"{target.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        status = part.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise TaskError(f"not a download of yours: {part}", f"remove it: rm {shlex.quote(str(part))}", Cause.DATA)
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            have = have if answer.status == _PARTIAL else 0
            length = answer.headers["Content-Length"]
            total = have + int(length) if length else 0
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_APPEND if have else os.O_TRUNC)
            with os.fdopen(os.open(part, flags, 0o644), "wb") as file:
                while block := answer.read(_BYTES_AT_ONCE):
                    file.write(block)
                    have += len(block)
                    progress(have, total)
    except urllib.error.HTTPError as error:
        if error.code != _BEYOND_THE_END:  # else the last byte had arrived before the connection was lost
            raise _unreachable(url, f"{error.code} {error.reason}") from None
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise _unreachable(url, str(getattr(error, "reason", error))) from None
    else:
        if have < total:
            message = f"the download of {url} stopped after {have} of {total} bytes"
            raise TaskError(message, "run the same command again to continue")
    part.replace(target)


def _unreachable(url: str, reason: str) -> TaskError:
    elsewhere = "download it elsewhere and unpack it so that ROOT/raw has its files, or use: clusterctl data generate"
    return TaskError(f"cannot download {url}: {reason}", f"no network here? {elsewhere}")


@contextmanager
def _progress_bar(what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A function that shows how many of a total (0: unknown) are done, on stderr, to keep stdout for data."""
    terminal = sys.stderr.isatty()
    shown = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal shown
        if time.monotonic() - shown < (0.1 if terminal else 10.0):
            return
        shown = time.monotonic()
        share = min(1.0, done / total) if total else 0.0
        bar = f"[{'#' * int(share * _BAR_WIDTH):<{_BAR_WIDTH}}] {share:4.0%}  " if total else ""
        scale, letter = next((one for one in _SCALES if done >= one[0]), (1, ""))
        text = f"{what} {bar}{f'{done / scale:.1f}' if letter else done} {letter}{unit}"
        print(f"\r{text}\x1b[K" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def main(command: str, name: str, *words: str) -> None:
    """Print a summary of the data set, or the message of a user error, with its exit code."""
    failure: ClusterctlError
    try:
        if command == "generate":
            scale, seed, root = words
            print(generate(name, float(scale), int(seed), Path(root).absolute()))
        else:
            root, cache, *arrangement = words
            print(prepare(name, Path(root).absolute(), Path(cache), *arrangement))
    except ModuleNotFoundError as error:
        install = f"{shlex.quote(sys.executable)} -m pip install torch torch_geometric numpy scipy"
        hint = f"{install}; or use a cluster whose Python has it: --cluster NAME"
        failure = TaskError(f"{sys.executable} has no {error.name}", hint)
    except ClusterctlError as error:
        failure = error
    except OSError as error:
        failure = TaskError(f"{error.filename or 'cannot write'}: {error.strerror}", "df -h")
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    else:
        return
    print(failure.text, file=sys.stderr)
    raise SystemExit(failure.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])
