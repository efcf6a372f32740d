"""What counts as a batch script, what its lines ask for, and how its copy is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.launcher.config.script_resolution import resolve_script, resolve_script_again
from clusterctl.launcher.config.secrets import written_secrets
from clusterctl.launcher.config.user_script import (
    UserScript,
    directives,
    find_script,
    missing_program,
    read_script,
    unseen_starts,
)
from clusterctl.launcher.submission.plan import make_plan
from clusterctl.launcher.submission.script import render
from clusterctl.launcher.submission.user_script import read_frozen
from clusterctl.shared.errors import ClusterctlError, ConfigError, UsageError
from clusterctl.shared.node.script_start import was_killed
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Cluster, Job, to_record

BASH = "#!/bin/bash\n"


def asked(lines: str) -> dict[str, str]:
    return {one.name: one.value for one in directives(BASH + lines)}


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        ("#SBATCH --nodes=2 -n 4\n", {"nodes": "2", "ntasks": "4"}),
        ("#SBATCH -N2\n#SBATCH -pgpu\n", {"nodes": "2", "partition": "gpu"}),
        ("#SBATCH-N2\n", {"nodes": "2"}),
        ("#SBATCH --part x\n", {"partition": "x"}),  # an abbreviation
        ("#SBATCH -N 1\n#SBATCH -N 3\n", {"nodes": "3"}),
        ("#SBATCH -N\n#SBATCH 3\n", {"nodes": "3"}),  # sbatch reads all lines as one command line
        ("#SBATCH -HQ -A me\n", {"hold": "", "quiet": "", "account": "me"}),
        ("#SBATCH --exclusive -p x\n#SBATCH --nice\n", {"exclusive": "", "partition": "x", "nice": ""}),
        ("#SBATCH --exclusive=user\n", {"exclusive": "user"}),
        ("#SBATCH --job-name='a b' --comment=\"c d\"\n", {"job-name": "a b", "comment": "c d"}),
        ("#SBATCH --comment=a#b -p x\n", {"comment": "a"}),  # a comment begins inside a word, too
        ("#SBATCH -p x stray --qos=q\n", {"partition": "x", "qos": "q"}),  # sbatch will refuse it
        ("#SBATCH --no-such-option=1 -p x\n", {"partition": "x"}),
        ('#SBATCH --comment="open\n#SBATCH -p x\n', {"partition": "x"}),
        ("\n# a comment\n  # another\n#SBATCH -p x\n", {"partition": "x"}),
        ("##SBATCH -p x\n # SBATCH -p x\n  #SBATCH -p x\n#sbatch -p x\n", {}),
        ("echo\n#SBATCH -p x\n", {}),
        ("cat <<X\n#SBATCH -p x\nX\n", {}),
        ("#SBATCH -p $USER\n", {"partition": "$USER"}),
        ("#PBS -N pbs\n#SBATCH -p x\n", {"job-name": "pbs", "partition": "x"}),
        ("#BSUB -J lsf\n", {"job-name": "lsf"}),
        ("#PBS -l nodes=2\n", {}),
        ("", {}),
    ],
)
def test_lines_are_read_as_sbatch_reads_them(lines: str, options: dict[str, str]) -> None:
    assert asked(lines) == options


@pytest.mark.parametrize(
    ("name", "content", "counts"),
    [
        ("train.sbatch", b"#!/bin/bash\n", True),
        ("train", b"#!/bin/sh\n", True),
        ("train.py", b"#!/usr/bin/env python3\n", False),
        ("train.py", b"#!/usr/bin/env python3\n#SBATCH -n2\n", True),
        ("train.py", b"import os\n", False),
        ("cora", b"#!/bin/sh\n", False),  # a job has that name
        ("./cora", b"#!/bin/sh\n", True),
        ("mine.toml", b'workload = "cora"\n', False),
        ("missing", None, False),
    ],
)
def test_a_file_that_begins_with_an_interpreter_is_a_batch_script(
    tmp_path: Path, name: str, content: bytes | None, counts: bool
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert (find_script(name, tmp_path) is not None) is counts


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xef\xbb\xbf#!/bin/bash\n", "byte order mark"),
        (b"\n#!/bin/bash\n", "blank line"),
        (b"#SBATCH -n2\nsrun x\n", "does not begin with #!"),
        (b"#!/bin/bash\r\necho\r\n", "DOS line breaks"),
        (b"#!/bin/bash\necho \0\n", "NUL"),
        (b"#!\necho\n", "no interpreter"),
        (b"#!/bin/bash\n#SBATCH -A <PROJECT>\n", "placeholder: <PROJECT>"),
        (b"#!/bin/bash\n#SBATCH -W\n", "--wait"),
        (b"#!/bin/bash\n#SBATCH -M other\n", "--clusters"),
        (b"#!/bin/bash\n#SBATCH --test-only\n", "--test-only"),
        (b"#!/bin/bash\n#SBATCH -n1\n#SBATCH hetjob\n#SBATCH -n2\n", "heterogeneous"),
    ],
)
def test_what_sbatch_or_a_run_cannot_have_is_refused_with_a_hint(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "a.sbatch").write_bytes(content)

    def read() -> None:
        if path := find_script("./a.sbatch", tmp_path):
            read_script(path, "./a.sbatch")

    with pytest.raises((ConfigError, UsageError), match=problem) as raised:
        read()
    assert raised.value.hint


@pytest.mark.parametrize("content", [b"#!/bin/bash", b"#!/bin/bash\necho <X>\n", b"#!/bin/bash\necho caf\xe9\n"])
def test_unusual_scripts_are_left_to_sbatch(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.sbatch").write_bytes(content)
    text = read_script(tmp_path / "a.sbatch", "./a.sbatch").text
    assert text.encode(errors="surrogateescape") == content


def words(
    lines: str, *settings: str, cluster: Cluster | None = None, run: Path = Path("/r/x"), **environment: str
) -> list[str]:
    script = UserScript("./train.sbatch", BASH + lines, ("a", "b c"))
    resolved = resolve_script(script, cluster or Cluster(name="c"), settings, environment)
    plan = make_plan(resolved, RunDir(run), run / "code", "1", "/usr/bin/python3")
    assert plan.script
    return plan.script.words(plan.run)


def test_only_what_is_typed_goes_to_the_command_line() -> None:
    assert words("#SBATCH -N 3 -p lines --qos=q\n") == [
        "--parsable",
        "--job-name=train.sbatch",
        "/r/x/script.sh",
        "a",
        "b c",
    ]
    typed = words("#SBATCH -N 3\n", "resources.nodes=2", "resources.time=90", "resources.sbatch.ntasks=4", "name=other")
    assert typed[1:-3] == ["--nodes=2", "--time=01:30:00", "--ntasks=4", "--job-name=other"]
    gpus = Cluster(name="c", gpu_request="gres")
    assert words("", "resources.gpus_per_node=2", cluster=gpus)[1:-4] == ["--gres=gpu:2"]
    assert words("#SBATCH -J given\n")[1:-3] == []  # its copy would have another name, but for that line


def test_the_cluster_file_fills_in_what_nobody_sets() -> None:
    cluster = Cluster(name="c", partition="gpu", account="us", gpus_per_node="4")
    assert words("", cluster=cluster)[1:-4] == ["--partition=gpu", "--account=us"]
    assert words("#SBATCH -p mine\n", cluster=cluster)[1:-4] == ["--account=us"]
    assert words("", cluster=cluster, SBATCH_ACCOUNT="other")[1:-4] == ["--partition=gpu", "--account=other"]
    assert words("", "resources.partition=typed", cluster=cluster)[1:-4] == ["--partition=typed", "--account=us"]


@pytest.mark.parametrize(
    "setting", ["train.lr=1", "container.image=x", "resources.warning=60", "argv=[]", "resources.local_code=true"]
)
def test_settings_without_an_effect_are_refused(setting: str) -> None:
    with pytest.raises(ClusterctlError):
        words("", setting)


def test_what_is_not_supported_is_refused_wherever_it_comes_from() -> None:
    with pytest.raises(ConfigError, match="wait"):
        words("", "resources.sbatch.wait=")
    with pytest.raises(ConfigError, match="SBATCH_WAIT"):
        words("", SBATCH_WAIT="1")


def test_a_setting_of_the_tasks_is_not_read_from_slurms_variables() -> None:
    with pytest.raises(ConfigError, match="SLURM_NTASKS"):
        words("", "env.SLURM_NTASKS=1")


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ("#SBATCH -N2 --ntasks-per-node=4 -t 10\n", (2, 4, 600)),
        ("#SBATCH -N2 -n8\n", (2, 4, 3600)),
        ("#SBATCH -N2-4 -t UNLIMITED\n", (1, None, 3600)),  # only sbatch understands these
    ],
)
def test_the_record_shows_what_the_lines_ask_for(lines: str, shown: tuple[int, int | None, int]) -> None:
    resources = resolve_script(UserScript("a.sh", BASH + lines), Cluster(name="c")).job.resources
    assert (resources.nodes, resources.tasks_per_node, resources.time) == shown


def test_the_run_is_named_after_the_job_or_the_file() -> None:
    assert UserScript("x/train me.sbatch", BASH).run_name({}) == "train-me"
    assert UserScript("a.sh", BASH + "#SBATCH -J 'my job'\n").run_name({}) == "my-job"
    assert UserScript("a.sh", BASH + "#SBATCH -J b\n").run_name({"SBATCH_JOB_NAME": "c"}) == "c"


def copy_of(text: str, run: Path) -> str:
    resolved = resolve_script(UserScript("./a.sh", text), Cluster(name="c"))
    return render(make_plan(resolved, RunDir(run), run / "code", "1", "/usr/bin/python3"))


def test_only_the_first_line_of_the_copy_differs(tmp_path: Path) -> None:
    text = "#!  /bin/bash -l\necho §\n  tail".replace("§", "\udce9")
    copy = copy_of(text, tmp_path)
    assert copy == f"#!{tmp_path}/start /bin/bash -l\necho \udce9\n  tail"


@pytest.mark.parametrize("folder", ["with space", "x" * 250])
def test_a_copy_that_the_kernel_could_not_start_is_unchanged(tmp_path: Path, folder: str) -> None:
    assert copy_of(BASH + "echo\n", tmp_path / folder) == BASH + "echo\n"


def test_an_earlier_script_is_read_back(tmp_path: Path) -> None:
    text = "#!/bin/bash -l\necho caf\udce9\n"
    (tmp_path / "script.sh").write_bytes(os.fsencode(copy_of(text, tmp_path)))
    assert read_frozen(RunDir(tmp_path), ("a.sh", "b")) == UserScript("a.sh", text, ("b",))


def test_a_repeated_script_is_asked_for_the_same() -> None:
    script, cluster = UserScript("a.sh", BASH + "#SBATCH -N4\n", ("x",)), Cluster(name="c", partition="gpu")
    first = resolve_script(script, cluster, ["resources.nodes=2", "env.LR=1"])
    again = resolve_script_again(script, to_record(first.job), first.origins, Cluster(name="d"), ["env.LR=2"])
    assert (again.job.resources.nodes, again.job.resources.partition, again.job.env) == (2, None, {"LR": "2"})
    assert isinstance(again.job, Job)
    assert again.job.argv == ("a.sh", "x")


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("/usr/bin/srun hostname", "/usr/bin/srun"),
        ("bash -lc 'srun python train.py'", "bash -lc"),
        ("mpirun -n 4 ./simulate", "mpirun"),
        ("srun --pty bash", "--pty"),
        ("srun -n 4 -u python train.py", "-u"),
        ("srun -o rank-%t.txt ./simulate", "rank-%t.txt"),
        ("srun --container-image=x python train.py", "--container-image=x"),
        ("srun -n 4 \\\n  --pty \\\n  bash", "--pty"),
        ("# mpirun -n 4", ""),
        ("srun -n 4 python -u train.py --output=x-%t", ""),
        ("srun python train.py", ""),
        ("echo mpirunner; $HOME/bin/srun-like", ""),
    ],
)
def test_a_script_tells_where_ranks_cannot_be_seen(line: str, word: str) -> None:
    assert unseen_starts(f"{BASH}{line}\n") == ([(2, word)] if word else [])


def test_an_array_is_passed_on_and_one_element_of_it_again(tmp_path: Path) -> None:
    lines = "#SBATCH --array=1,3-9:2%2\n"
    assert "--array=1,3-9:2%2" in words(lines)
    assert "--array=0-1" in words(lines, SBATCH_ARRAY_INX="0-1")
    assert "--array=4" in words(lines, "resources.sbatch.array=4", SBATCH_ARRAY_INX="0-1")
    script = UserScript("./train.sbatch", BASH + lines)
    one = resolve_script(script, Cluster(name="c"), ["resources.sbatch.array=3"], {})
    again = resolve_script_again(script, to_record(one.job), one.origins, one.cluster, (), {})
    plan = make_plan(again, RunDir(tmp_path / "x.3"), tmp_path / "code", "1", "/usr/bin/python3")
    assert plan.script
    assert plan.script.job_id("12") == "12_3"
    whole = resolve_script(script, Cluster(name="c"), (), {})
    with pytest.raises(UsageError, match="one element"):
        resolve_script_again(script, to_record(whole.job), whole.origins, whole.cluster, (), {})


def test_restarts_of_a_script_are_off_unless_they_are_typed() -> None:
    assert "--requeue" not in words("")
    assert "--requeue" in words("", "restart.limit=2")
    with pytest.raises(ConfigError, match="--no-requeue contradicts"):
        words("#SBATCH --no-requeue\n", "restart.limit=2")
    with pytest.raises(ConfigError, match="its own job"):
        words("", "restart.limit=2", "restart.by=successor")
    with pytest.raises(ConfigError, match="no effect"):
        words("", "restart.where=queue")


KILLED = "srun: error: n1: task 3: Killed\nsrun: error: n1: tasks 0-2: Terminated\n"
RAISED = "srun: error: n1: task 3: Exited with exit code 1\nsrun: error: n1: tasks 0-2: Terminated\n"


@pytest.mark.parametrize(
    ("errors", "code", "again"),
    [
        (KILLED, 143, True),
        (KILLED, 137, True),
        ("srun: error: n1: task 0: Out Of Memory\n", 137, True),
        ("", 137, True),  # without srun
        (KILLED, 1, False),  # what the script made of it
        (RAISED, 143, False),
        (f"{RAISED}{KILLED}", 143, False),
        ("Killed\ntask 3: Killed\n srun: error: n1: task 3: Killed\n", 143, False),  # somebody else's words
        ("", 143, False),
        ("", 1, False),
    ],
)
def test_only_a_kill_runs_a_script_again(tmp_path: Path, errors: str, code: int, again: bool) -> None:
    path, before = tmp_path / "errors", "srun: error: n1: task 0: Exited with exit code 9\n"  # of an earlier attempt
    path.write_text(before + errors)
    saved = os.dup(2)
    try:
        with path.open("a") as file:
            os.dup2(file.fileno(), 2)
        found = was_killed(code, len(before))
    finally:
        os.dup2(saved, 2)
        os.close(saved)
    assert found is again


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("export HF_TOKEN=hf_abcdefghij", ["HF_TOKEN"]),
        ("WANDB_API_KEY='0123456789abcdef' srun python train.py", ["WANDB_API_KEY"]),
        ("git clone https://me:s3cr3t-word@example.org/x.git", ["the password in a URL"]),
        ("python train.py --api-key=abcdef123456", ["api-key"]),
        ("# export HF_TOKEN=hf_abcdefghij", []),
        ("export HF_TOKEN=$(cat ~/.token) API_KEY=$KEY SSH_KEY=/home/me/key", []),
        ("export TOKENIZERS_PARALLELISM=false NUM_TOKENS=1000000", []),
        ("curl https://example.org:8080/x@y", []),
    ],
)
def test_a_line_tells_what_looks_like_a_secret(line: str, names: list[str]) -> None:
    assert [*written_secrets(line)] == names


@pytest.mark.parametrize(
    ("lines", "missing"),
    [
        ("srun python train.py", (2, "python")),
        ("# python\ncd x && python3.11 -m train", (3, "python3.11")),
        ("there\nout=$(torchrun --nnodes 2 train.py)", (3, "torchrun")),
        ("echo pythonic; ./python train.py; srun $PYTHON x; /opt/bin/python x", None),
        ("there train.py", None),
        ("module load python\nsrun python train.py", None),
        ("  . venv/bin/activate\npython train.py", None),
        ("export PATH=/opt/bin:$PATH\npython train.py", None),
        ('eval "$(conda shell.bash hook)"\npython train.py', None),
        ("srun --container-image=torch.sqsh python train.py", None),
        ("apptainer exec torch.sif python train.py", None),
        ("python a.py\nmodule load python", (2, "python")),
    ],
)
def test_a_python_that_the_path_lacks_is_found(lines: str, missing: tuple[int, str] | None, tmp_path: Path) -> None:
    for name in ("there", "torch"):
        (tmp_path / name).touch(0o700)
    assert missing_program(f"{BASH}{lines}\n", str(tmp_path)) == missing
    for name in ("python", "python3.11", "torchrun"):
        (tmp_path / name).touch(0o700)
    assert missing_program(f"{BASH}{lines}\n", str(tmp_path)) is None
