"""A user's own batch script as a job: what each line becomes, and what is reported as not convertible."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.api.init import toml_text
from clusterctl.launcher.submission.batch_script import Converted, convert
from clusterctl.shared.spec import Job, from_record

RUN = "srun python train.py\n"


def converted(*lines: str, program: str = RUN) -> Converted:
    return convert("#!/bin/bash\n" + "".join(f"{line}\n" for line in lines) + program)


def resources(*lines: str, program: str = RUN) -> dict[str, Any]:
    return dict(converted(*lines, program=program).job.get("resources", {}))


def problems(*lines: str, program: str = RUN) -> list[str]:
    return [row.problem for row in converted(*lines, program=program).rows if row.problem]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--nodes=2", {"nodes": 2}),
        ("--nodes 2", {"nodes": 2}),
        ("-N 2", {"nodes": 2}),
        ("-N2 -c 8", {"nodes": 2, "cpus_per_task": 8}),
        ("--ntasks-per-node=4", {"tasks_per_node": 4}),
        ("--mem=64G", {"memory": "64G"}),
        ("--mem-per-cpu 2G", {"mem_per_cpu": "2G"}),
        ("-t 1-00:00:00", {"time": "1-00:00:00"}),
        ("--time=90", {"time": "90"}),
        ("-p gpu,cpu -A proj -q high", {"partition": "gpu,cpu", "account": "proj", "qos": "high"}),
        ("--gres=gpu:4", {"gpus_per_node": 4}),
        ("--gres=gpu", {"gpus_per_node": 1}),
        ("--gres=gpu:a100:4", {"gpus_per_node": "a100:4"}),
        ("--gres=gpu:a100", {"gpus_per_node": "a100:1"}),
        ("--gres=nvme:1,gpu:2", {"gpus_per_node": 2, "gres": "nvme:1"}),
        ("--gpus-per-node=v100:2", {"gpus_per_node": "v100:2"}),
        ("--exclusive", {"exclusive": True}),
        ("--no-requeue", {"requeue": False}),
        ('--comment="two words" # and a comment', {"comment": "two words"}),
        ("--signal=B:USR1@300", {"warning": 300}),
        ("--mail-type=END --mail-user me@here", {"mail_type": "END", "mail_user": "me@here"}),
        ("--power=low", {"sbatch": {"power": "low"}}),
        ("--spread-job", {"sbatch": {"spread-job": ""}}),
    ],
)
def test_an_option_becomes_a_key(option: str, expected: dict[str, Any]) -> None:
    assert resources(f"#SBATCH {option}") == expected


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--output=x.log", "clusterctl logs"),
        ("-e x.err", "clusterctl logs"),
        ("--array=0-9", "--sweep"),
        ("--nodes=2-4", "nodes"),
        ("--time=soon", "not a duration"),
        ("--wrap=ls", "clusterctl sets this option"),
        ("--gres=gpu:a:1,gpu:b:1", "several GPU types"),
        ("--job-name=", "name"),
        ("-Z", "unknown option"),
        ('--comment="open', "No closing quotation"),
        ("nonsense", "not an option: nonsense"),
    ],
)
def test_an_option_that_cannot_be_converted_is_reported(option: str, message: str) -> None:
    assert message in problems(f"#SBATCH {option}")[0]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["-n 8 -N 2"], 4),
        (["-n 8", "--nodes=2"], 4),
        (["-N 2", "--ntasks=8"], 4),
        (["-n 1"], 1),
        (["-n 8 --ntasks-per-node=2"], 2),
        (["-n 8"], None),
        (["-n 7", "-N 2"], None),
    ],
)
def test_ntasks_becomes_tasks_per_node_if_the_nodes_are_known(lines: list[str], expected: int | None) -> None:
    written = [f"#SBATCH {line}" for line in lines]
    assert resources(*written).get("tasks_per_node") == expected
    assert (expected is None) == any("ranks are counted by node" in problem for problem in problems(*written))


def test_job_name_folder_and_exported_variables_are_converted() -> None:
    job = converted("#SBATCH -J 'my run' -D /data/project", "#SBATCH --export=ALL,SEED=1").job
    assert (job["name"], job["code"], job["env"]) == ("my-run", "/data/project", {"SEED": "1"})


def test_options_after_the_first_command_are_ignored_as_in_sbatch() -> None:
    assert resources("#SBATCH -N 2", "module load cuda", "#SBATCH -N 4", "##SBATCH -N 8") == {"nodes": 2}
    assert problems("module load cuda", "#SBATCH -N 4") == ["sbatch ignores options after the first command"]


def test_setup_lines_are_kept_unchanged() -> None:
    lines = [
        "module load cuda/12.1",
        "source ~/env/bin/activate",
        'eval "$(conda shell.bash hook)"',
        "conda activate x",
        "ulimit -n 4096",
        "export PATH=$HOME/bin:$PATH",
    ]
    assert converted(*lines).job["setup"] == lines
    assert converted("HEAD=$(hostname -s | head -n 1)").job["setup"] == ["export HEAD=$(hostname -s | head -n 1)"]


def test_constants_become_environment_variables() -> None:
    job = converted("export A=1 B='two words'", "C=3", "export PYTHONPATH=").job
    assert job["env"] == {"A": "1", "B": "two words", "C": "3", "PYTHONPATH": ""}


@pytest.mark.parametrize(
    "line",
    [
        "export MASTER_PORT=29500",
        "MASTER_ADDR=$(hostname)",
        "export RANK=$SLURM_PROCID",
        "export SLURM_HINT=nomultithread",
    ],
)
def test_variables_that_clusterctl_sets_are_reported(line: str) -> None:
    assert "clusterctl" in problems(line)[0]
    assert "setup" not in converted(line).job
    assert "env" not in converted(line).job


@pytest.mark.parametrize(
    ("program", "argv"),
    [
        ("srun python train.py --lr 0.1", ["python", "train.py", "--lr", "0.1"]),
        ("srun -n 4 --label --mpi=none -u python train.py", ["python", "train.py"]),
        ("srun --cpu-bind none -- python train.py", ["python", "train.py"]),
        ("srun python train.py \\\n  --lr 0.1", ["python", "train.py", "--lr", "0.1"]),
        ("srun python train.py --name 'a b'", ["python", "train.py", "--name", "a b"]),
        ("srun python train.py > out.log 2>&1", ["python", "train.py"]),
        ("srun python train.py 2>&1 | tee -a log.txt", ["python", "train.py"]),
        ("exec srun ./a.out", ["./a.out"]),
        ("OMP_NUM_THREADS=1 srun python train.py", ["python", "train.py"]),
        ("srun python train.py --data $DATA", ["bash", "-c", "python train.py --data $DATA"]),
        ("srun --label python 'a $b' *.txt", ["bash", "-c", "python 'a $b' *.txt"]),
        ("python -c 'print(1 > 0)'", ["python", "-c", "print(1 > 0)"]),
        ("torchrun --nproc-per-node 4 train.py", ["torchrun", "--nproc-per-node", "4", "train.py"]),
        ("/opt/bin/python3.11 -u train.py", ["/opt/bin/python3.11", "-u", "train.py"]),
    ],
)
def test_the_line_that_starts_the_program_is_the_command(program: str, argv: list[str]) -> None:
    assert converted(program=program).job["argv"] == argv


def test_without_srun_a_program_runs_once_per_node() -> None:
    job = converted("#SBATCH -n 4", program="python train.py\n").job
    assert job["resources"] == {"tasks_per_node": 1}
    found = problems("#SBATCH -N 2", program="torchrun train.py\n")
    assert found == ["without srun it ran only on the first node; here it runs once on every node"]


def test_pyxis_options_become_the_container() -> None:
    options = "--container-image=a.sqsh --container-mounts=/a:/b,/c:/c:ro --container-mount-home --container-workdir /w"
    assert converted(program=f"srun {options} python train.py").job["container"] == {
        "image": "a.sqsh",
        "mounts": ["/a:/b", "/c:/c:ro"],
        "mount_home": True,
        "workdir": "/w",
    }


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["for i in 1 2 3; do", "  srun python train.py $i", "done"], "a loop"),
        (["for i in 1 2; do srun python train.py $i; done"], "a loop"),
        (["if [ -f x ]; then", "  for i in a; do echo; done", "  source y", "fi"], "a loop"),
        (["prepare() {", "  module load cuda", "}"], "a function"),
        (["cat > config.yaml <<EOF", "lr: 0.1", "srun python train.py", "EOF"], "a here-document"),
        (["cat <<-'END'", "\tsource x", "\tEND"], "a here-document"),
        (["rsync -a data/ /tmp/data"], "purpose unknown"),
        (["cd build"], "below the current one"),
        (["echo hello"], "not needed"),
        (["srun python prepare.py"], "one of several programs"),
        (["FOO=1 some-program"], "purpose unknown"),
    ],
)
def test_lines_that_cannot_be_converted_are_reported(lines: list[str], message: str) -> None:
    found = converted(*lines)
    row = next(row for row in found.rows if row.number == 2)
    assert message in row.problem
    assert row.became == ()
    assert "setup" not in found.job
    assert [one.number for one in found.rows] == [2, len(lines) + 2]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("srun python a.py && srun python b.py", "more than one command"),
        ("srun python a.py &", "more than one command"),
        ("srun --frobnicate now python a.py", "unknown option: --frobnicate"),
        ("srun", "no program to start"),
        ("X=$Y srun python a.py", "an assignment that a shell has to expand"),
        ("", "no line starts a program"),
    ],
)
def test_an_unclear_program_is_reported_and_left_out_of_the_job(program: str, message: str) -> None:
    found = converted(program=program)
    assert "argv" not in found.job
    assert message in found.rows[-1].problem


def test_every_line_but_blanks_and_comments_is_in_the_table_in_order() -> None:
    found = converted("#SBATCH -N 2", "", "# comment", "module load cuda", "echo a")
    assert [(row.number, row.text) for row in found.rows] == [
        (2, "#SBATCH -N 2"),
        (5, "module load cuda"),
        (6, "echo a"),
        (7, "srun python train.py"),
    ]


PIECES = [
    "#SBATCH ",
    "-n 3 ",
    "--gres=gpu:",
    "srun ",
    "export A=",
    "$(",
    ")",
    "<<E\n",
    "E\n",
    "'",
    '"',
    "\\\n",
    "for x; do ",
]
SCRIPTS = st.lists(st.sampled_from([*PIECES, "done\n", "\n", "²", "{", "}", "cd ", "=", " & "]) | st.text(max_size=4))


@given(SCRIPTS.map("".join))
def test_any_text_converts_to_a_valid_job(text: str) -> None:
    job = convert(text).job
    written = tomllib.loads(toml_text(job))
    assert written == job
    from_record(Job, {"name": "x", "argv": ["true"], **written}, parse=True)
