"""python -m clusterctl.workloads.prepare reddit|taobao ROOT CACHE: what `clusterctl data prepare` starts.

Downloads what PyG's class of the data set would, unless its raw files are there, and converts them for the runs whose
prepared data lies in CACHE. Each step that is done is not done again.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import uuid
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.errors import TaskError
from clusterctl.workloads.data_command import Bar, run
from clusterctl.workloads.download import fetch

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.graph.storage import Recipe


class DataSet(NamedTuple):
    url: str
    raw_files: tuple[str, ...]
    recipe: Callable[[Path], Recipe[Any]]


def data_set(name: str) -> DataSet:
    """What is known of the data set; the addresses are those of PyG's classes."""
    from torch_geometric import datasets  # here: what is missing becomes a message

    from clusterctl.spec import TaobaoTrain
    from clusterctl.workloads import reddit_format, taobao_format, taobao_graph

    if name == "reddit":
        return DataSet(
            datasets.Reddit.url,
            reddit_format.RAW_FILES,
            lambda root: reddit_format.recipe(reddit_format.raw_identity(str(root))),
        )
    return DataSet(
        datasets.Taobao.url,
        (taobao_format.RAW_FILE,),
        lambda root: taobao_graph.recipe(root, TaobaoTrain().together),
    )


def main(name: str, root: Path, cache: Path) -> str:
    """Bring the data set to `root` and its prepared form into `cache`; a line about it. Raises TaskError."""
    found = data_set(name)
    if not all((root / "raw" / file).exists() for file in found.raw_files):
        download(found, name, root)
    from clusterctl.graph.storage import whole
    from clusterctl.runs.once import prepared_once

    print(f"converting {root}", file=sys.stderr)
    recipe = found.recipe(root)
    prepared_once(cache / recipe.folder, recipe.prepare, whole=whole)
    return f"ready: {root}; try: clusterctl submit {name} --set {shlex.quote(f'data.root={root}')}"


def download(found: DataSet, name: str, root: Path) -> None:
    """Fetch the archive and unpack its raw files; they appear when they are whole."""
    archive = root / f"{name}.zip"
    if not archive.exists():
        bar = Bar(f"downloading {name}", "B")
        try:
            fetch(found.url, archive, bar.show)
        finally:
            bar.end()
    raw = root / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(archive) as content:
            members = {Path(member).name: member for member in content.namelist()}
            for file in found.raw_files:
                aside = raw / f".{file}.{uuid.uuid4().hex}"
                with content.open(members[file]) as source, aside.open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                aside.replace(raw / file)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        archive.unlink()
        raise TaskError(f"{found.url} is not the data set: {error}", "type the same again: it starts anew") from None
    archive.unlink()


if __name__ == "__main__":
    name, root, cache = sys.argv[1:]
    run(lambda: main(name, Path(root).absolute(), Path(cache)))
