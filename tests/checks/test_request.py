"""What stands in the way of a run and can be seen before anything is queued."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.checks.request import obstacles, refuse
from clusterctl.checks.surroundings import Folder, Seen, Surroundings, look_around
from clusterctl.config import Resolved
from clusterctl.errors import ConfigError
from clusterctl.spec import (
    Cluster,
    CommandTrain,
    Container,
    Data,
    GraphClassificationTrain,
    Job,
    RedditTrain,
    Resources,
)

GOOD = Surroundings(
    runs=Folder("/runs", exists=True, writable=True),
    open_files=1024,
    tasks=8,
    data=Seen("/data", True),
    interpreter=Seen("/venv/bin/python", True),
    python=(3, 12),
    program=Seen("/code/train.py", True),
)


def test_where_all_is_there_nothing_stands_in_the_way() -> None:
    assert list(obstacles(GOOD)) == []
    refuse(obstacles(GOOD))


@pytest.mark.parametrize(
    ("found", "says", "hint"),
    [
        (replace(GOOD, runs=replace(GOOD.runs, free_bytes=2**20)), "the disk is full: 1 MiB free", "df -h"),
        (replace(GOOD, runs=replace(GOOD.runs, free_files=3)), "room for 3 more files", "df -i"),
        (replace(GOOD, tasks=2048), "at most 1024 open files, and 2048 ranks need 4160", "ulimit -n 4160"),
        (replace(GOOD, data=Seen("/data", False)), "no data: /data", "data.root"),
        (replace(GOOD, data=Seen("/data", True, missing=("raw/x.npz",))), "/data lacks raw/x.npz", "data.root"),
        (replace(GOOD, interpreter=Seen("/p", False), python=None), "no such interpreter: /p", "`python`"),
        (replace(GOOD, python=None), "does not run as Python", "`python`"),
        (replace(GOOD, python=(3, 9)), "is Python 3.9", "3.11"),
        (replace(GOOD, program=Seen("/code/trian.py", False)), "no such file: /code/trian.py", "`code`"),
    ],
)
def test_what_is_missing_is_told_with_its_hint(found: Surroundings, says: str, hint: str) -> None:
    (obstacle,) = obstacles(found)
    assert says in obstacle.message
    assert hint in obstacle.hint


def test_what_may_lie_on_the_nodes_alone_is_no_obstacle() -> None:
    hidden = Seen("/raid/x", False, visible=False)
    found = replace(GOOD, data=hidden, interpreter=hidden, python=None)
    assert list(obstacles(found)) == []


def test_everything_is_told_at_once() -> None:
    found = replace(GOOD, data=Seen("/data", False), python=(3, 9), open_files=10)
    with pytest.raises(ConfigError) as refusal:
        refuse(obstacles(found))
    assert refusal.value.message.startswith("3 things stand in the way of the run\n")
    assert len(refusal.value.hint.splitlines()) == 3


def resolved(tmp_path: Path, cluster: Cluster, **job: object) -> Resolved:
    made = Job(name="x", **{"workload": "reddit", "train": RedditTrain(), **job})  # type: ignore[arg-type]
    return Resolved(made, replace(cluster, runs=str(tmp_path / "runs")), {}, tmp_path / "x.toml")


HERE, ELSEWHERE = Cluster(name="local", kind="emulator"), Cluster(name="site")


def test_looking_around_sees_data_and_what_it_lacks_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "data" / "raw").mkdir(parents=True)
    (tmp_path / "data" / "raw" / "reddit_data.npz").write_text("")
    found = look_around(resolved(tmp_path, HERE, data=Data(root=str(tmp_path / "data"))))
    assert found.data == Seen(str(tmp_path / "data"), True, True, ("raw/reddit_graph.npz",))
    assert not (tmp_path / "runs").exists()
    assert found.interpreter is None


def test_a_tu_data_set_is_known_by_its_pattern(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for part in ("A", "graph_indicator", "graph_labels"):
        (tmp_path / "raw" / f"MUTAG_{part}.txt").write_text("")
    job = {"workload": "graph-classification", "train": GraphClassificationTrain(), "data": Data(root=str(tmp_path))}
    found = look_around(resolved(tmp_path, HERE, **job)).data
    assert found is not None
    assert found.missing == ()


def test_elsewhere_a_missing_path_is_a_mistake_only_where_its_folder_can_be_seen(tmp_path: Path) -> None:
    hidden = look_around(resolved(tmp_path, ELSEWHERE, data=Data(root="/no/such/place"))).data
    assert hidden == Seen("/no/such/place", False, False)
    typo = look_around(resolved(tmp_path, ELSEWHERE, data=Data(root=str(tmp_path / "dta")))).data
    assert typo == Seen(str(tmp_path / "dta"), False, True)


@pytest.mark.parametrize(("python", "version"), [("/bin/true", None), (sys.executable, sys.version_info[:2])])
def test_the_clusters_interpreter_is_asked_for_its_version(
    tmp_path: Path, python: str, version: tuple[int, ...] | None
) -> None:
    link = tmp_path / "python"
    link.symlink_to(python)
    found = look_around(resolved(tmp_path, replace(HERE, python=str(link))))
    assert (found.interpreter, found.python) == (Seen(str(link), True), version)


def test_what_setup_lines_or_an_image_bring_is_not_looked_for(tmp_path: Path) -> None:
    loaded = replace(ELSEWHERE, python="/nowhere/python", setup=("module load python",))
    assert look_around(resolved(tmp_path, loaded)).interpreter is None
    image = Container(image=str(tmp_path / "x.sqsh"))
    found = look_around(resolved(tmp_path, replace(ELSEWHERE, python="/nowhere/python"), container=image))
    assert found.interpreter is None


def test_a_programs_script_is_looked_for_in_the_jobs_code(tmp_path: Path) -> None:
    job = {"workload": "command", "train": CommandTrain(), "code": str(tmp_path), "resources": Resources(nodes=3)}
    found = look_around(resolved(tmp_path, HERE, argv=("python", "train.py", "--x"), **job))
    assert (found.program, found.tasks) == (Seen(str(tmp_path / "train.py"), False), 3)
    for argv in (("python", "-c", "pass"), ("python", "/opt/x.py"), ("torchrun", "x.py"), ("sh", "a.sh")):
        assert look_around(resolved(tmp_path, HERE, argv=argv, **job)).program is None
