"""What `submit` and `resume` refuse before anything is queued: all of it at once, with nothing left behind."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from support.mistake import CONFIG, SLURM, Desk, Mistake, check_message, rows

from clusterctl.runs.files import write_json
from clusterctl.runs.layout import RunDir

REDDIT = 'workload = "reddit"\n[data]\nroot = "./data"\n'


@rows(
    Mistake(what="the data are not there", job=REDDIT, code=CONFIG, says="data: no such folder", hint="data.root"),
    Mistake(
        what="the data are of another kind",
        job=REDDIT,
        files={"data/raw/reddit_data.npz": "", "data/raw/MUTAG_A.txt": ""},
        code=CONFIG,
        says="lacks raw/reddit_graph.npz",
        hint="data.root",
    ),
    Mistake(
        what="the script has another name",
        job='workload = "command"\nargv = ["python3", "trian.py"]\n',
        files={"train.py": ""},
        code=CONFIG,
        says="argv: no such file: ",
        hint="`code`",
    ),
    Mistake(
        what="the cluster's interpreter is not there",
        typed="submit cora --cluster ./here.toml",
        files={"here.toml": 'kind = "emulator"\npython = "/nowhere/python"\n'},
        code=CONFIG,
        says="no such interpreter: /nowhere/python",
        hint="`python`",
    ),
    Mistake(
        what="the cluster's interpreter is no Python",
        typed="submit cora --cluster ./here.toml",
        files={"here.toml": 'kind = "emulator"\npython = "/bin/true"\n'},
        code=CONFIG,
        says="does not run as Python: /bin/true",
        hint="`python`",
    ),
    Mistake(
        what="more ranks than open files",
        job='workload = "synthetic"\n[resources]\nnodes = 2000000000\n',
        code=CONFIG,
        says="2000000000 ranks need 6000000064",
        hint="ulimit -Hn",
    ),
)
def test_what_can_be_seen_from_here_is_told_before_anything_is_queued(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)


def test_all_of_it_is_told_in_one_go(desk: Desk) -> None:
    desk.write("here.toml", 'kind = "emulator"\npython = "/nowhere/python"\n')
    desk.write("job.toml", REDDIT)
    code, out, err = desk.type("submit ./job.toml --cluster ./here.toml")
    assert (code, out) == (CONFIG, "")
    check_message(err, "2 problems would make the run fail", "data.root")
    assert "no such interpreter" in err
    assert "no data" in err
    assert desk.run_directories() == []


@pytest.mark.parametrize("cluster", ['kind = "slurm"\npython = "/raid/venv/bin/python"\n'])
def test_what_may_lie_on_the_nodes_alone_is_left_to_them(desk: Desk, cluster: str) -> None:
    desk.use_slurm(cluster.partition("\n")[2], sbatch='echo "Submitted batch job 7"')
    desk.write("job.toml", 'workload = "reddit"\n[data]\nroot = "/raid/data"\n')
    code, out, err = desk.type("submit ./job.toml")
    assert code == 0, err
    assert out.strip()


def commands(err: str) -> list[str]:
    """The commands in the first line of the hint."""
    line = next(line for line in err.splitlines() if line.startswith("hint: "))
    return line.removeprefix("hint: ").split(" && ")


@pytest.mark.parametrize(
    ("job", "data", "settings", "smaller"),
    [
        ("reddit", "reddit", "", []),
        ("deep-sage", "reddit", "", ["--scale", "0.0003"]),
        ("taobao", "taobao", " --set train.lr=2e-3", ["--scale", "0.0003"]),
    ],
)
def test_the_hint_for_a_shipped_job_on_this_machine_works_when_typed(
    desk: Desk, job: str, data: str, settings: str, smaller: list[str]
) -> None:
    code, out, err = desk.type(f"submit {job}{settings}")
    assert (code, out) == (CONFIG, "")
    check_message(err, "2 problems would make the run fail", f"clusterctl data prepare {data} --root DIR")
    assert re.search(r"no data: .* data.root is not set", err)
    assert f"{job} requests 4 GPUs, 16 CPUs and " in err
    assert "; local nodes have 0 GPUs, 4 CPUs" in err
    assert desk.submitted() == desk.run_directories() == []

    bring, submit = commands(err)
    assert bring == f"clusterctl data generate {data} --root {data}-data"
    code, _, err = desk.type([*shlex.split(bring)[1:], *smaller])
    assert code == 0, err
    assert settings in submit
    code, out, err = desk.type([*shlex.split(submit)[1:], "--hold"])
    assert code == 0
    assert re.sub(r"warning: the global batch .*\nhint: .*\n", "", err) == ""  # of data that are small enough for here
    assert desk.run_directories() == [desk.runs / out.strip()]
    assert desk.type("cancel @last")[0] == 0

    err = desk.type(f"submit {job}{settings}")[2]
    assert commands(err) == [submit]  # the data are there now


@pytest.mark.parametrize("job", ["synthetic", "synthetic-sage", "cora", "taobao-generated", "imdb-gin", "command"])
def test_a_shipped_job_that_needs_nothing_is_taken_as_it_is(desk: Desk, job: str) -> None:
    code, _, err = desk.type(f"submit {job} --hold")
    assert (code, err) == (0, "")
    assert desk.type("cancel @last")[0] == 0


def test_graph_classification_without_data_is_offered_the_shipped_data_set(desk: Desk) -> None:
    desk.write("job.toml", 'workload = "graph-classification"\n')
    code, _, err = desk.type("submit ./job.toml")
    assert code == CONFIG
    check_message(err, "no data: ", "data.root")
    (command,) = commands(err)
    assert desk.type([*shlex.split(command)[1:], "--hold"])[0] == 0
    assert desk.type("cancel @last")[0] == 0


def test_missing_data_are_refused_on_a_cluster_too(desk: Desk) -> None:
    desk.use_slurm(sbatch='echo "Submitted batch job 7"')
    code, _, err = desk.type("submit reddit")
    assert code == CONFIG
    check_message(err, "no data: ", "clusterctl data generate reddit --root reddit-data && clusterctl submit reddit")
    assert desk.asked("sbatch") == 0


CAPTURED = Path(__file__).parents[1] / "slurm" / "fixtures" / "sinfo-22.05.8.txt"
UNAVAILABLE = """
for script; do :; done
if grep -q gpus-per-node "$script"; then
  echo "sbatch: error: Batch job submission failed: Requested node configuration is not available" >&2
  exit 1
fi
echo "Submitted batch job 7"
"""


def refusing_gpus(desk: Desk) -> None:
    desk.use_slurm(sbatch=UNAVAILABLE, sinfo=f"cat {CAPTURED}")


def test_what_slurm_has_is_asked_once_for_many_submissions(desk: Desk) -> None:
    refusing_gpus(desk)
    desk.write("cluster/site.toml", 'kind = "slurm"\n')  # whose polling floor is not 0
    desk.write("job.toml", 'workload = "synthetic"\n[resources]\ngpus_per_node = 9\n')
    code, out, err = desk.type("submit ./job.toml")
    assert (code, out) == (SLURM, "")
    check_message(err, "job requests 9 GPUs", "clusterctl submit ./job.toml --gpus-per-node 4")
    assert "main partition nodes have 4 GPUs" in err
    assert (desk.asked("sinfo"), desk.asked("sbatch")) == (1, 1)
    assert desk.run_directories() == []
    assert desk.type("submit ./job.toml --gpus-per-node 0")[0] == 0
    assert desk.asked("sinfo") == 1


def test_a_refusal_of_the_size_stays_as_slurm_worded_it_where_nodes_cannot_be_had(desk: Desk) -> None:
    refusing_gpus(desk)
    (desk.folder / "fakes" / "sinfo").write_text("#!/bin/sh\nexit 1\n")
    desk.write("job.toml", 'workload = "synthetic"\n[resources]\ngpus_per_node = 9\n')
    code, _, err = desk.type("submit ./job.toml")
    assert code == SLURM
    check_message(err, "Requested node configuration is not available", "clusterctl nodes")


@pytest.mark.parametrize(
    ("change", "says", "hint"),
    [
        ("--nodes 9", "job requests 9 nodes; local has 4", "--nodes 4"),
        ("--set data.root=/nowhere/data", "no data: /nowhere/data: no such folder", "data.root"),
    ],
)
def test_resume_is_refused_as_submit_is(desk: Desk, change: str, says: str, hint: str) -> None:
    desk.write("data/raw/reddit_data.npz", "")
    desk.write("data/raw/reddit_graph.npz", "")
    desk.write("job.toml", REDDIT)
    code, out, err = desk.type("submit ./job.toml --hold")
    assert code == 0, err
    run = RunDir(desk.runs / out.strip())
    assert desk.type("cancel @last")[0] == 0
    run.attempt(0).path.mkdir(parents=True, exist_ok=True)
    write_json(run.attempt(0).host_json, {"attempt": 0, "job_id": "1", "exit_code": 1, "start": 1, "end": 2})
    before, record = len(desk.submitted()), run.run_json.read_bytes()
    code, out, err = desk.type(f"resume @last {change}")
    assert (code, out) in ((CONFIG, ""), (SLURM, "")), err
    check_message(err, says, hint)
    if "--nodes" in change:
        assert commands(err) == [f"clusterctl resume {run.id} --nodes 4"]
    assert (len(desk.submitted()), run.run_json.read_bytes()) == (before, record)


def test_a_warning_of_a_check_does_not_stop_the_run(desk: Desk) -> None:
    desk.use_slurm(
        '[container]\nimage = "/raid/images/x.sqsh"\n',
        sbatch='echo "Submitted batch job 7"',
        srun="echo --container-image",
    )
    code, _, err = desk.type("submit synthetic")
    assert code == 0
    assert err.startswith("warning: not on this machine: /raid/images/x.sqsh\nhint: ")


def test_what_the_copy_of_the_code_leaves_behind_is_said(desk: Desk) -> None:
    desk.use_slurm(sbatch="echo Submitted batch job 7")
    desk.write("train.py", "")
    (desk.project / "data").symlink_to(desk.folder)
    code, out, err = desk.type(["submit", "command", "--set", 'argv=["python", "train.py"]'])
    assert code == 0, err
    assert err.count("warning:") == 1
    assert f"warning: not copied: data -> {desk.folder}\n" in err
    assert (desk.runs / out.strip() / "code" / "project" / "data").readlink() == desk.folder


def test_the_home_folder_is_no_project_unless_it_is_named_as_one(desk: Desk) -> None:
    desk.use_slurm(sbatch="echo Submitted batch job 7")
    desk.set(HOME=str(desk.project))
    words = ["submit", "command", "--cluster", "./cluster/site.toml", "--set", 'argv=["true"]']
    code, _, err = desk.type(words)
    assert code == CONFIG
    check_message(err, "your home folder", "--set code=")
    assert desk.type([*words, "--set", "code=."])[0] == 0
    desk.write("pyproject.toml", "")
    assert desk.type(words)[0] == 0


def test_modules_that_the_code_lacks_are_warned_of_and_data_may_come_from_the_code(desk: Desk) -> None:
    desk.write("job.toml", 'workload = "node-classification"\n[train]\nmodel = "mine:Net"\n')
    code, out, err = desk.type("submit ./job.toml --hold --cluster local")
    assert (code, out) == (CONFIG, "")
    assert "data.root is not set" in err
    assert "or data.load to a function of your code" in err
    code, _, err = desk.type("submit ./job.toml --hold --cluster local --set data.load=other:load")
    assert code == 0
    for key, module in (("train.model", "mine"), ("data.load", "other")):
        assert re.search(rf"warning: {key}: no such file: .*/{module}\.py\n", err), err
    desk.write("mine.py", "")
    desk.write("other.py", "")
    assert "warning" not in desk.type("submit ./job.toml --hold --cluster local --set data.load=other:load")[2]
