"""What would make a run fail and can be detected before anything is submitted."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.launcher.checks.job_rules import changed_batch
from clusterctl.launcher.checks.look import look_around
from clusterctl.launcher.checks.surroundings import (
    Check,
    Folder,
    Interpreter,
    NodeSize,
    Seen,
    Surroundings,
    Verdict,
    WantedRun,
)
from clusterctl.launcher.checks.verify import judge, refuse
from clusterctl.launcher.config import Resolved, load_cluster
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.submission.plan import make_plan
from clusterctl.shared.errors import ClusterctlError, ConfigError, SlurmError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import (
    Batches,
    Cluster,
    CommandTrain,
    Container,
    Data,
    GraphClassificationTrain,
    Job,
    RedditTrain,
    Resources,
    SyntheticTrain,
    TaobaoTrain,
    TrainingSet,
)

PYTHON = Seen("/venv/bin/python", True)
JOB = Job(name="x", workload="reddit", train=RedditTrain(), resources=Resources(gpus_per_node=0, tasks_per_node=1))
LOCAL = load_cluster("local")
ASKED = Resolved(JOB, LOCAL, {}, Path("/jobs/x.toml"), typed=("submit", "x"), settings=("train.lr=1",))
WANTED = WantedRun(ASKED, tasks=8, data=Seen("/data", True), program=Seen("/code/train.py", True))
GOOD = Surroundings(
    cluster=LOCAL,
    runs=Folder("/runs", exists=True, writable=True),
    open_files=1024,
    interpreter=Interpreter(PYTHON, (3, 12, 1)),
    wanted=WANTED,
)


@pytest.fixture(autouse=True)
def default_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERCTL_CLUSTER", "local")


def with_run(**facts: Any) -> Surroundings:
    return replace(GOOD, wanted=replace(WANTED, **facts))


def fatal(found: Surroundings) -> list[Check]:
    return [check for check in judge(found) if check.fatal]


def test_the_open_file_limit_does_not_apply_to_the_users_own_program() -> None:
    program = replace(JOB, workload="command", argv=("true",), train=CommandTrain())
    wanted = replace(WANTED, resolved=replace(ASKED, job=program), tasks=2048)
    assert judge(replace(GOOD, wanted=wanted)) == ()


def test_a_global_batch_larger_than_the_training_set_is_a_warning() -> None:
    few = TrainingSet(1000, "nodes")
    assert judge(with_run(batches=Batches(RedditTrain(batch_size=250), 4, few))) == ()
    (check,) = judge(with_run(batches=Batches(RedditTrain(batch_size=251), 4, few)))
    assert (check.verdict, check.name) == (Verdict.WARN, "batch")
    assert "exceeds the training set of 1,000 nodes" in check.message


def test_a_global_batch_changed_by_the_number_of_ranks_is_a_warning() -> None:
    four = Batches(RedditTrain(batch_size=128), 4)
    (check,) = changed_batch(four, Batches(RedditTrain(batch_size=128), 8))
    assert check.message == "the global batch changes from 512 on 4 ranks to 1,024"
    assert check.hint == "keep it with: `train.global_batch_size = 512`"
    assert not list(changed_batch(four, Batches(RedditTrain(batch_size=64), 8)))
    assert not list(changed_batch(four, Batches(RedditTrain(batch_size=64), 4))), "asked for"
    assert not list(changed_batch(None, None))


def test_a_job_with_everything_in_place_passes() -> None:
    assert judge(GOOD) == ()
    refuse(judge(GOOD), ASKED)


@pytest.mark.parametrize(
    ("found", "message", "hint"),
    [
        (replace(GOOD, runs=replace(GOOD.runs, free_bytes=2**20)), "the disk is full: 1 MiB free", "df -h"),
        (replace(GOOD, runs=replace(GOOD.runs, free_files=3)), "only 3 inodes free", "df -i"),
        (with_run(tasks=2048), "the limit is 1024 open files, but 2048 ranks need 6208", "ulimit -Hn"),
        (with_run(data=Seen("/data", False)), "no data: /data", "data.root"),
        (with_run(data=Seen("/data", True, missing=("raw/x.npz",))), "/data lacks raw/x.npz", "data.root"),
        (replace(GOOD, interpreter=Interpreter(Seen("/p", False))), "no such interpreter: /p", "`python`"),
        (replace(GOOD, interpreter=Interpreter(PYTHON)), "does not run as Python", "`python`"),
        (replace(GOOD, interpreter=Interpreter(PYTHON, (3, 9))), "is Python 3.9", "3.11"),
        (with_run(program=Seen("/code/trian.py", False)), "no such file: /code/trian.py", "`code`"),
    ],
)
def test_each_failure_comes_with_a_hint(found: Surroundings, message: str, hint: str) -> None:
    (check,) = fatal(found)
    assert message in check.message
    assert hint in check.hint


def test_paths_that_may_exist_on_nodes_only_are_not_checked() -> None:
    hidden = Seen("/raid/x", False, visible=False)
    assert judge(replace(with_run(data=hidden), interpreter=Interpreter(hidden))) == ()


def test_all_failures_are_reported_together() -> None:
    found = replace(with_run(data=Seen("/data", False)), interpreter=Interpreter(PYTHON, (3, 9)), open_files=10)
    with pytest.raises(ConfigError) as refusal:
        refuse(judge(found), ASKED)
    assert refusal.value.message.startswith("3 problems would make the run fail\n")
    assert len(refusal.value.hint.splitlines()) == 3


def refusal_of(found: Surroundings, error: type[ClusterctlError]) -> ClusterctlError:
    assert found.wanted is not None
    with pytest.raises(error) as refusal:
        refuse(judge(found), found.wanted.resolved)
    assert type(refusal.value) is error
    return refusal.value


def test_missing_data_comes_with_the_command_to_generate_it() -> None:
    refusal = refusal_of(with_run(data=None), ConfigError)
    assert refusal.message.startswith('no data: workload "reddit" needs raw/reddit_data.npz and raw/reddit_graph.npz')
    first, second = refusal.hint.splitlines()
    assert first == (
        "clusterctl data generate reddit --root reddit-data"
        " && clusterctl submit x --set train.lr=1 --set data.root=reddit-data"
    )
    assert second.endswith("clusterctl data prepare reddit --root DIR")


def test_data_already_generated_is_not_generated_again() -> None:
    refusal = refusal_of(with_run(data=None, data_here=True), ConfigError)
    assert refusal.hint.startswith("clusterctl submit x --set train.lr=1 --set data.root=reddit-data\n")


def test_data_is_generated_with_the_clusters_python() -> None:
    asked = replace(ASKED, cluster=Cluster(name="site", python="/venv/bin/python"))
    refusal = refusal_of(replace(GOOD, wanted=replace(WANTED, resolved=asked, data=None)), ConfigError)
    assert "data generate reddit --root reddit-data --cluster site, then add `data.root = reddit-data`" in refusal.hint


def test_a_workload_that_generates_its_own_data_needs_none() -> None:
    for workload, train in (("taobao", TaobaoTrain(generated=0.01)), ("synthetic", SyntheticTrain())):
        asked = replace(ASKED, job=replace(JOB, workload=workload, train=train))
        assert judge(with_run(resolved=asked, data=None)) == ()


def test_a_request_that_does_not_fit_is_refused_as_by_slurm() -> None:
    asked = replace(ASKED, job=replace(JOB, resources=replace(JOB.resources, nodes=3)))
    refusal = refusal_of(with_run(resolved=asked, nodes=(NodeSize(0, 1, 1024),) * 2, where="local"), SlurmError)
    assert refusal.message == "x requests 3 nodes; local has 2"
    assert refusal.hint == "clusterctl submit x --set train.lr=1 --nodes 2"


def test_the_hint_replaces_the_option_that_was_typed() -> None:
    asked = replace(
        ASKED,
        job=replace(JOB, resources=replace(JOB.resources, nodes=3)),
        settings=("resources.nodes=3", "env.TOKEN=hush"),
    )
    refusal = refusal_of(with_run(resolved=asked, nodes=(NodeSize(0, 1, 1024),)), SlurmError)
    assert "--nodes 1" in refusal.hint
    assert "nodes=3" not in refusal.hint
    assert "hush" not in refusal.hint


def test_if_other_problems_remain_the_hint_only_names_the_option_to_add() -> None:
    asked = replace(ASKED, job=replace(JOB, resources=replace(JOB.resources, nodes=3)))
    found = with_run(resolved=asked, nodes=(NodeSize(0, 1, 1024),) * 2, data=Seen("/data", False))
    assert refusal_of(found, ConfigError).hint.splitlines()[0] == "add `resources.nodes = 2`"


def resolved(tmp_path: Path, cluster: Cluster, **job: object) -> Resolved:
    made = Job(name="x", **{"workload": "reddit", "train": RedditTrain(), **job})  # type: ignore[arg-type]
    return Resolved(made, replace(cluster, runs=str(tmp_path / "runs")), {}, tmp_path / "x.toml")


HERE, ELSEWHERE = LOCAL, Cluster(name="site")


def looked(asked: Resolved) -> Surroundings:
    run = RunDir(Path(asked.cluster.runs or "") / "x-20260102-030405-00a1")
    slurm = Slurm(lambda _: None) if asked.cluster.is_slurm else Slurm.of(asked.cluster)
    return look_around(asked, make_plan(asked, run, run.path / "code", "0"), slurm)


def wanted(asked: Resolved) -> WantedRun:
    found = looked(asked).wanted
    assert found is not None
    return found


def test_looking_around_finds_missing_data_files_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "data" / "raw").mkdir(parents=True)
    (tmp_path / "data" / "raw" / "reddit_data.npz").write_text("")
    asked = resolved(tmp_path, HERE, data=Data(root=str(tmp_path / "data")))
    found = looked(asked)
    assert wanted(asked).data == Seen(str(tmp_path / "data"), True, True, ("raw/reddit_graph.npz",))
    assert not (tmp_path / "runs").exists()
    assert found.interpreter is None


def test_a_tu_data_set_is_recognized_by_its_pattern(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for part in ("A", "graph_indicator", "graph_labels"):
        (tmp_path / "raw" / f"MUTAG_{part}.txt").write_text("")
    job = {"workload": "graph-classification", "train": GraphClassificationTrain(), "data": Data(root=str(tmp_path))}
    found = wanted(resolved(tmp_path, HERE, **job)).data
    assert found is not None
    assert found.missing == ()


def test_a_missing_path_is_an_error_only_if_its_parent_folder_is_visible(tmp_path: Path) -> None:
    hidden = wanted(resolved(tmp_path, ELSEWHERE, data=Data(root="/no/such/place"))).data
    assert hidden is not None
    assert (hidden.there, hidden.visible) == (False, False)
    typo = wanted(resolved(tmp_path, ELSEWHERE, data=Data(root=str(tmp_path / "dta")))).data
    assert typo is not None
    assert (typo.there, typo.visible) == (False, True)


@pytest.mark.parametrize(("python", "version"), [("/bin/true", ()), (sys.executable, sys.version_info[:3])])
def test_the_clusters_interpreter_is_asked_for_its_version(
    tmp_path: Path, python: str, version: tuple[int, ...]
) -> None:
    link = tmp_path / "python"
    link.symlink_to(python)
    found = looked(resolved(tmp_path, replace(HERE, python=str(link)))).interpreter
    assert found is not None
    assert (found.seen, found.version) == (Seen(str(link), True), version)


def test_an_interpreter_from_setup_lines_or_an_image_is_not_looked_for(tmp_path: Path) -> None:
    loaded = replace(ELSEWHERE, python="/nowhere/python", setup=("module load python",))
    assert looked(resolved(tmp_path, loaded)).interpreter is None
    image = Container(image=str(tmp_path / "x.sqsh"))
    site = replace(ELSEWHERE, python="/nowhere/python", container_runtime="builtin")
    found = looked(resolved(tmp_path, site, container=image))
    assert found.interpreter is None


def test_a_programs_script_is_looked_for_in_the_jobs_code(tmp_path: Path) -> None:
    job = {"workload": "command", "train": CommandTrain(), "code": str(tmp_path), "resources": Resources(nodes=3)}
    found = wanted(resolved(tmp_path, HERE, argv=("python", "train.py", "--x"), **job))
    assert (found.program, found.tasks) == (Seen(str(tmp_path / "train.py"), False), 3)
    for argv in (("python", "-c", "pass"), ("python", "/opt/x.py"), ("torchrun", "x.py"), ("sh", "a.sh")):
        assert wanted(resolved(tmp_path, HERE, argv=argv, **job)).program is None


@pytest.mark.parametrize(
    ("cluster", "workload", "nodes", "resolve", "warned"),
    [
        (HERE, "command", 2, False, True),
        (HERE, "command", 2, True, False),
        (HERE, "command", 1, False, False),
        (HERE, "reddit", 2, False, False),
        (ELSEWHERE, "command", 2, False, False),
    ],
)
def test_names_of_virtual_nodes_that_do_not_resolve_are_a_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cluster: Cluster,
    workload: str,
    nodes: int,
    resolve: bool,
    warned: bool,
) -> None:
    monkeypatch.setattr("clusterctl.launcher.emulator.virtual_cluster.names_resolve", lambda _: resolve)
    job = {"workload": "command", "argv": ("true",), "train": CommandTrain()} if workload == "command" else {}
    asked = resolved(tmp_path, cluster, resources=Resources(nodes=nodes, tasks_per_node=1), **job)
    names = [check for check in judge(looked(asked)) if check.name == "names"]
    assert [check.verdict for check in names] == [Verdict.WARN] * warned
    assert all("$MASTER_ADDR" in check.hint for check in names)
