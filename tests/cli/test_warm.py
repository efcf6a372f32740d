"""`alloc`, `submit --in-allocation` and `attach`: what is refused, and with which message."""

from __future__ import annotations

from support.mistake import NOT_FOUND, SLURM, USAGE, Desk, Mistake, rows

JOB = 'workload = "synthetic"\n[resources]\nnodes = 2\n'
HELD = "printf '12\\037RUNNING\\0371\\037N/A\\037N/A\\037node1\\0374\\037\\n'"
PENDING = HELD.replace("RUNNING", "PENDING")


@rows(
    Mistake(
        what="an allocation that does not exist",
        typed="submit ./job.toml --in-allocation 99",
        job=JOB,
        code=NOT_FOUND,
        expected="you have no job with this ID: 99",
        hint="clusterctl alloc",
        prepare=lambda desk: desk.use_slurm(
            squeue="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
        ),
    ),
    Mistake(
        what="an allocation ID that is not a number",
        typed=("submit", "./job.toml", "--in-allocation", "12; rm -rf /"),
        job=JOB,
        code=NOT_FOUND,
        expected="you have no job with this ID: 12; rm -rf /",
        hint="clusterctl alloc",
        prepare=lambda desk: desk.use_slurm(),
    ),
    Mistake(
        what="an allocation that is still pending",
        typed="submit ./job.toml --in-allocation 12",
        job=JOB,
        code=USAGE,
        expected="allocation 12 holds no nodes: PENDING",
        hint="squeue --me",
        prepare=lambda desk: desk.use_slurm(squeue=PENDING),
    ),
    Mistake(
        what="a job that is larger than the allocation",
        typed="submit ./job.toml --in-allocation 12",
        job=JOB,
        code=USAGE,
        expected="the job requests 2 nodes, allocation 12 has 1",
        hint="--set resources.nodes=1",
        prepare=lambda desk: desk.use_slurm(squeue=HELD),
    ),
    Mistake(
        what="a held run in an allocation",
        typed="submit ./job.toml --in-allocation 12 --hold",
        job=JOB,
        code=USAGE,
        expected="a run in an allocation is not queued",
        hint="use only one of these options",
        prepare=lambda desk: desk.use_slurm(),
    ),
    Mistake(
        what="an srun that refuses",
        typed="submit ./job.toml --in-allocation 12 --nodes 1",
        job=JOB,
        code=SLURM,
        expected="srun did not start the run: Unable to confirm allocation",
        hint="squeue --me",
        prepare=lambda desk: desk.use_slurm(
            squeue=HELD, srun="echo 'srun: error: Unable to confirm allocation for job 12' >&2; exit 1"
        ),
    ),
    Mistake(
        what="nodes given back and requested at once",
        typed="alloc --end 12 --nodes 2",
        code=USAGE,
        expected="--end cannot be combined with",
        hint="alloc --end 12",
        prepare=lambda desk: desk.use_slurm(),
    ),
    Mistake(
        what="nodes that Slurm does not give",
        typed="alloc --nodes 2",
        code=SLURM,
        expected="sbatch refused the job: Node count specification invalid",
        hint="request fewer nodes",
        prepare=lambda desk: desk.use_slurm(
            sbatch="echo 'sbatch: error: Node count specification invalid' >&2; exit 1"
        ),
    ),
    Mistake(
        what="a shell without a terminal",
        typed="attach x",
        code=USAGE,
        expected="an interactive shell needs a terminal",
        hint="-- COMMAND",
        prepare=lambda desk: desk.use_slurm(),
    ),
)
def test_mistakes_are_explained(mistake: Mistake, desk: Desk) -> None:
    mistake.make(desk)


def test_a_dry_run_prints_the_script_of_a_warm_run(desk: Desk) -> None:
    desk.write("job.toml", JOB)
    desk.use_slurm(squeue=HELD)
    code, out, _ = desk.type("submit ./job.toml --in-allocation 12 --nodes 1 --dry-run")
    assert code == 0
    assert "\n#SBATCH" not in out
    assert "unset" in out
    assert desk.run_directories() == []


def test_end_cancels_a_foreign_job_and_signals_our_own(desk: Desk) -> None:
    desk.use_slurm(squeue=HELD)
    assert desk.type("alloc --end 12")[::2] == (0, "gave back 12\n")
    assert "scancel 12" in desk._asked.read_text()
    held = desk.runs / ".warm" / "12"
    held.mkdir(parents=True)
    (held / "held").touch()
    desk.type("alloc --end 12")
    assert "scancel --signal=USR1 --batch 12" in desk._asked.read_text()
