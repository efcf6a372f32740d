"""Problems that `submit` and `resume` find before anything is queued: all reported at once, nothing left behind."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from support.mistake import CONFIG, SLURM, Desk, Mistake, check_message, rows

from clusterctl.shared.record.files import write_json
from clusterctl.shared.record.layout import RunDir

REDDIT = 'workload = "reddit"\n[data]\nroot = "./data"\n'


@rows(
    Mistake(what="the data does not exist", job=REDDIT, code=CONFIG, expected="data: no such folder", hint="data.root"),
    Mistake(
        what="the data belongs to another data set",
        job=REDDIT,
        files={"data/raw/reddit_data.npz": "", "data/raw/MUTAG_A.txt": ""},
        code=CONFIG,
        expected="lacks raw/reddit_graph.npz",
        hint="data.root",
    ),
    Mistake(
        what="the script's name has a typo",
        job='workload = "command"\nargv = ["python3", "trian.py"]\n',
        files={"train.py": ""},
        code=CONFIG,
        expected="argv: no such file: ",
        hint="`code`",
    ),
    Mistake(
        what="the cluster's interpreter does not exist",
        typed="submit cora --cluster ./here.toml",
        files={"here.toml": 'kind = "emulator"\npython = "/nowhere/python"\n'},
        code=CONFIG,
        expected="no such interpreter: /nowhere/python",
        hint="`python`",
    ),
    Mistake(
        what="the cluster's interpreter is not Python",
        typed="submit cora --cluster ./here.toml",
        files={"here.toml": 'kind = "emulator"\npython = "/bin/true"\n'},
        code=CONFIG,
        expected="does not run as Python: /bin/true",
        hint="`python`",
    ),
    Mistake(
        what="there are more ranks than file descriptors",
        job='workload = "synthetic"\n[resources]\nnodes = 2000000000\n',
        code=CONFIG,
        expected="2000000000 ranks need 6000000064",
        hint="ulimit -Hn",
    ),
)
def test_submit_refuses_what_it_can_check_on_this_machine(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)


def test_all_problems_are_reported_at_once(desk: Desk) -> None:
    desk.write("here.toml", 'kind = "emulator"\npython = "/nowhere/python"\n')
    desk.write("job.toml", REDDIT)
    code, out, err = desk.type("submit ./job.toml --cluster ./here.toml")
    assert (code, out) == (CONFIG, "")
    check_message(err, "2 problems would make the run fail", "data.root")
    assert "no such interpreter" in err
    assert "no data" in err
    assert desk.run_directories() == []


@pytest.mark.parametrize("cluster", ['kind = "slurm"\npython = "/raid/venv/bin/python"\n'])
def test_paths_that_only_the_nodes_may_have_are_not_checked(desk: Desk, cluster: str) -> None:
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
        pytest.param("reddit", "reddit", "", [], marks=pytest.mark.long),
        pytest.param("deep-sage", "reddit", "", ["--scale", "0.0003"], marks=pytest.mark.long),
        ("taobao", "taobao", " --set train.lr=2e-3", ["--scale", "0.0003"]),
    ],
)
def test_the_hint_for_a_shipped_job_works_on_this_machine(
    desk: Desk, job: str, data: str, settings: str, smaller: list[str]
) -> None:
    code, out, err = desk.type(f"submit {job}{settings}")
    assert (code, out) == (CONFIG, "")
    check_message(err, "2 problems would make the run fail", f"clusterctl data prepare {data} --root DIR")
    assert re.search(r"no data: .* data.root is not set", err)
    assert f"{job} requests 4 GPUs, 16 CPUs and " in err
    assert "; local nodes have 0 GPUs, 4 CPUs" in err
    assert desk.submitted() == desk.run_directories() == []

    generate, submit = commands(err)
    assert generate == f"clusterctl data generate {data} --root {data}-data"
    code, _, err = desk.type([*shlex.split(generate)[1:], *smaller])
    assert code == 0, err
    assert settings in submit
    code, out, err = desk.type([*shlex.split(submit)[1:], "--hold"])
    assert code == 0
    assert re.sub(r"warning: the global batch .*\nhint: .*\n", "", err) == ""  # the data is small
    assert desk.run_directories() == [desk.runs / out.strip()]
    assert desk.type("cancel @last")[0] == 0

    err = desk.type(f"submit {job}{settings}")[2]
    assert commands(err) == [submit]  # the data exists now


@pytest.mark.parametrize("job", ["synthetic", "synthetic-sage", "cora", "taobao-generated", "imdb-gin", "command"])
def test_a_shipped_job_that_needs_no_data_is_accepted(desk: Desk, job: str) -> None:
    code, _, err = desk.type(f"submit {job} --hold")
    assert (code, err) == (0, "")
    assert desk.type("cancel @last")[0] == 0


def test_graph_classification_without_data_suggests_the_shipped_data_set(desk: Desk) -> None:
    desk.write("job.toml", 'workload = "graph-classification"\n')
    code, _, err = desk.type("submit ./job.toml")
    assert code == CONFIG
    check_message(err, "no data: ", "data.root")
    (command,) = commands(err)
    assert desk.type([*shlex.split(command)[1:], "--hold"])[0] == 0
    assert desk.type("cancel @last")[0] == 0


def test_missing_data_is_refused_on_a_cluster_too(desk: Desk) -> None:
    desk.use_slurm(sbatch='echo "Submitted batch job 7"')
    code, _, err = desk.type("submit reddit")
    assert code == CONFIG
    check_message(err, "no data: ", "clusterctl data generate reddit --root reddit-data && clusterctl submit reddit")
    assert desk.asked("sbatch") == 0


CAPTURED = Path(__file__).parents[1] / "slurm" / "fixtures" / "sinfo-22.05.8.txt"
UNAVAILABLE = """
if grep -q gpus-per-node; then
  echo "sbatch: error: Batch job submission failed: Requested node configuration is not available" >&2
  exit 1
fi
echo "Submitted batch job 7"
"""


def refusing_gpus(desk: Desk) -> None:
    desk.use_slurm(sbatch=UNAVAILABLE, sinfo=f"cat {CAPTURED}")


def test_sinfo_is_called_once_for_several_submissions(desk: Desk) -> None:
    refusing_gpus(desk)
    desk.write("cluster/site.toml", 'kind = "slurm"\n')  # its polling floor is not 0
    desk.write("job.toml", 'workload = "synthetic"\n[resources]\ngpus_per_node = 9\n')
    code, out, err = desk.type("submit ./job.toml")
    assert (code, out) == (SLURM, "")
    check_message(err, "job requests 9 GPUs", "clusterctl submit ./job.toml --gpus-per-node 4")
    assert "main partition nodes have 4 GPUs" in err
    assert (desk.asked("sinfo"), desk.asked("sbatch")) == (1, 1)
    assert desk.run_directories() == []
    assert desk.type("submit ./job.toml --gpus-per-node 0")[0] == 0
    assert desk.asked("sinfo") == 1


def test_slurms_own_message_is_shown_if_sinfo_fails(desk: Desk) -> None:
    refusing_gpus(desk)
    (desk.folder / "fakes" / "sinfo").write_text("#!/bin/sh\nexit 1\n")
    desk.write("job.toml", 'workload = "synthetic"\n[resources]\ngpus_per_node = 9\n')
    code, _, err = desk.type("submit ./job.toml")
    assert code == SLURM
    check_message(err, "Requested node configuration is not available", "clusterctl nodes")


@pytest.mark.parametrize(
    ("change", "expected", "hint"),
    [
        ("--nodes 9", "job requests 9 nodes; local has 4", "--nodes 4"),
        ("--set data.root=/nowhere/data", "no data: /nowhere/data: no such folder", "data.root"),
    ],
)
def test_resume_is_refused_like_submit(desk: Desk, change: str, expected: str, hint: str) -> None:
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
    check_message(err, expected, hint)
    if "--nodes" in change:
        assert commands(err) == [f"clusterctl resume {run.id} --nodes 4"]
    assert (len(desk.submitted()), run.run_json.read_bytes()) == (before, record)


def test_a_warning_does_not_stop_the_run(desk: Desk) -> None:
    desk.use_slurm(
        '[container]\nimage = "/raid/images/x.sqsh"\n',
        sbatch='echo "Submitted batch job 7"',
        srun="echo --container-image",
    )
    code, _, err = desk.type("submit synthetic")
    assert code == 0
    assert err.startswith("warning: not on this machine: /raid/images/x.sqsh\nhint: ")


def test_files_not_copied_with_the_code_are_reported(desk: Desk) -> None:
    desk.use_slurm(sbatch="echo Submitted batch job 7")
    desk.write("train.py", "")
    (desk.project / "data").symlink_to(desk.folder)
    code, out, err = desk.type(["submit", "command", "--set", 'argv=["python", "train.py"]'])
    assert code == 0, err
    assert err.count("warning:") == 1
    assert f"warning: not copied: data -> {desk.folder}\n" in err
    assert (desk.runs / out.strip() / "code" / "project" / "data").readlink() == desk.folder


def test_the_home_folder_is_a_project_only_on_request(desk: Desk) -> None:
    desk.use_slurm(sbatch="echo Submitted batch job 7")
    desk.set(HOME=str(desk.project))
    words = ["submit", "command", "--cluster", "./cluster/site.toml", "--set", 'argv=["true"]']
    code, _, err = desk.type(words)
    assert code == CONFIG
    check_message(err, "your home folder", "--set code=")
    assert desk.type([*words, "--set", "code=."])[0] == 0
    desk.write("pyproject.toml", "")
    assert desk.type(words)[0] == 0


def test_missing_modules_of_the_code_are_warnings(desk: Desk) -> None:
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


def test_a_forward_that_nobody_can_call_is_refused_without_running_it(desk: Desk) -> None:
    desk.write("job.toml", 'workload = "node-classification"\n[train]\nmodel = "mine:Net"\n')
    desk.write("other.py", "")
    words = "submit ./job.toml --hold --cluster local --set data.load=other:load"
    for arguments, problem in (
        ("x, adj_t", "forward(x, adj_t): adj_t is not supported"),
        ("x, edge_index, time", "forward(x, edge_index, time): nobody fills time"),
    ):
        desk.write("mine.py", f"raise SystemExit(9)\nclass Net:\n    def forward(self, {arguments}):\n        pass\n")
        code, out, err = desk.type(words)
        assert (code, out) == (CONFIG, "")
        check_message(err, f"train.model = mine:Net: {problem}", "edge_index")
    desk.write("mine.py", "class Net:\n    def forward(self, x, edge_index, p=0.5):\n        pass\n")
    assert desk.type(words)[0] == 0
