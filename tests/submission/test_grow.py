"""How a run that was short of memory or time goes on with more, with stand-ins for Slurm."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import pytest
from support.batch_host import ALL_DONE, CHECKPOINT, ONE_KILLED, Host, asks

from clusterctl.launcher.config import resolve
from clusterctl.launcher.observe.attempt import Grown, read_host
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.spec import Cluster
from clusterctl.shared.spec.job import Grow, Restart

KILL = "slurmstepd-n1: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed."
OF_SRUN = "srun: error: n1: task 1: Out Of Memory"
TIMEOUT = "slurmstepd-n1: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***"
IDLE = "0/8/0/8 (null) idle"
NODES = f"main* n1 8000 {IDLE} (null)\\nmain* n2 16000 {IDLE} ib,a100\\nother n9 900000 {IDLE} (null)\\n"
BADLY = 'touch "$attempt/marks/00000.ended" "$attempt/marks/00001.ended"\n'


def site(
    folder: Path,
    memory: float | None = 1.5,
    time: float | None = 2.0,
    limit: str = "UNLIMITED",
    waiting: bool = False,
    **more: object,
) -> Host:
    """A partition of nodes with at most 16,000 MiB; the job has an hour and 4,000 MiB."""
    restart = Restart(**{"where": "queue", **more}, grow=Grow(memory=memory, time=time))  # type: ignore[arg-type]
    host = Host(folder, restart=restart)
    state = "PENDING" if waiting else "COMPLETED"
    host.scontrol = (
        f'case "$*" in\n"show job 13") echo "JobState={state} Reason=Dependency" ;;\n'
        '"show job"*) echo "JobState=RUNNING TimeLimit=01:00:00 Partition=main X=1" ;;\n'
        f'"show partition main") echo "   MaxTime={limit} MaxMemPerNode=UNLIMITED PreemptMode=OFF X=1" ;;\nesac'
    )
    host.others = {"sbatch": "echo 13", "squeue": "", "scancel": "", "sinfo": f'printf "{NODES}"'}
    host.environment = {"SLURM_MEM_PER_NODE": "4000"}
    return host


def reported(line: str, where: str = "$attempt/logs/rank_00001.err") -> str:
    return f'echo {quote(line)} >>"{where}"\n'


def asked(host: Host, word: str) -> list[str]:
    return [line for line in host.asked.read_text().splitlines() if line.startswith(word)]


def queued(host: Host) -> list[str]:
    """The options of each sbatch besides those that every successor has."""
    usual = ("--parsable", "--dependency=afterany:12", "script.sh")
    return [" ".join(word for word in line.split()[1:] if word not in usual) for line in asked(host, "sbatch")]


@pytest.mark.parametrize("line", [KILL, "slurmstepd: error: Step 12.0 exceeded memory limit (5 > 4), being killed"])
def test_a_killed_rank_goes_on_with_more_memory_instead_of_on_the_same_nodes(tmp_path: Path, line: str) -> None:
    host = site(tmp_path, where="allocation")
    assert host.call(ONE_KILLED + reported(line) + "exit 137") == 137
    assert queued(host) == ["--mem=6000M"]
    record = read_host(host.run.attempt(0))
    assert (record.requeued, record.grown) == (True, Grown("memory", 4000, 6000))


def test_the_reports_of_srun_and_of_a_standby_count(tmp_path: Path) -> None:
    for number, line in enumerate(
        [OF_SRUN, "clusterctl: the kernel has killed a process for lack of memory: oom_kill event"]
    ):
        host = site(tmp_path / str(number))
        host.call(ONE_KILLED + reported(line, "$attempt/host.log") + "exit 137")
        assert queued(host) == ["--mem=6000M"]


def test_a_worker_of_a_data_loader_that_was_killed_counts(tmp_path: Path) -> None:
    host = site(tmp_path)
    words = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. "
    assert host.call(BADLY + reported(KILL) + reported(words) + "exit 1") == 1
    assert queued(host) == ["--mem=6000M"]


@pytest.mark.parametrize(
    "words",
    [
        "  traceback : Signal 9 (SIGKILL) received by PID 4711",  # torchrun, accelerate
        "[rank0]:   traceback : Signal 9 (SIGKILL) received by PID 4711",
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
    ],
)
def test_a_launcher_whose_worker_was_killed_counts_if_the_kernel_did_it(tmp_path: Path, words: str) -> None:
    host = site(tmp_path)
    host.call(BADLY + reported(KILL) + reported(words) + "exit 1")
    assert queued(host) == ["--mem=6000M"]


@pytest.mark.parametrize(
    ("srun", "why"),
    [
        (ONE_KILLED + "exit 137", "nobody reports the kill"),
        (ONE_KILLED + reported(KILL.replace("12.0", "11.0")) + "exit 137", "another job's kill"),
        (ONE_KILLED + reported(f"I saw: {KILL}") + "exit 137", "a program's own words"),
        (BADLY + reported(KILL) + "exit 1", "the ranks failed by themselves"),
        (BADLY + reported("torch.OutOfMemoryError: CUDA out of memory.") + "exit 1", "a GPU's memory"),
        (BADLY + reported("MemoryError") + "exit 1", "more of Slurm's memory may not help"),
        (
            BADLY + reported(KILL) + reported("  traceback : Signal 11 (SIGSEGV) received by PID 7") + "exit 1",
            "the launcher's worker crashed",
        ),
        (
            BADLY + reported("  traceback : Signal 9 (SIGKILL) received by PID 7") + "exit 1",
            "nobody reports who killed the launcher's worker",
        ),
        (reported(KILL) + ALL_DONE, "it has finished"),
    ],
    ids=lambda value: value if " " in value and "\n" not in value else "",
)
def test_what_more_memory_may_not_cure_gets_none(tmp_path: Path, srun: str, why: str) -> None:
    host = site(tmp_path)
    host.call(srun)
    assert read_host(host.run.attempt(0)).grown is None, why
    assert not [options for options in queued(host) if "--mem" in options] if host.asked.exists() else True


def test_memory_is_bounded_by_the_largest_node_of_the_partition(tmp_path: Path) -> None:
    host = site(tmp_path)
    host.environment["SLURM_MEM_PER_NODE"] = "15000"
    host.call(ONE_KILLED + reported(KILL) + "exit 137")
    assert queued(host) == ["--mem=16000M"]
    host = site(tmp_path / "again")
    host.environment["SLURM_MEM_PER_NODE"] = "16000"
    host.call(ONE_KILLED + reported(KILL) + "exit 137")
    assert (asked(host, "sbatch"), host.host()["refused"]) == ([], "no-more-memory")


@pytest.mark.parametrize(
    ("nodes", "had", "options"),
    [(1, 15000, "--mem=16000M"), (2, 7000, "--mem=8000M"), (2, 8000, ""), (1, 8000, "--mem=12000M")],
)
def test_as_many_nodes_as_the_job_needs_must_have_the_memory(
    tmp_path: Path, nodes: int, had: int, options: str
) -> None:
    host = site(tmp_path)
    host.environment |= {"SLURM_MEM_PER_NODE": str(had), "SLURM_JOB_NUM_NODES": str(nodes)}
    host.call(ONE_KILLED + reported(KILL) + "exit 137")
    assert (queued(host) if options else asked(host, "sbatch")) == ([options] if options else [])


FOUR = f"n1 20000 {IDLE} a,b\\nmain n2 16000 {IDLE} a\\nmain n3 12000 {IDLE} b,c\\nmain n4 8000 {IDLE} (null)"


@pytest.mark.parametrize(
    ("nodes", "shown", "options"),
    [
        (1, "ReqNodeList=(null) ExcNodeList=(null) Features=(null)", "--mem=9000M"),
        (1, "ExcNodeList=n[1-3]", "--mem=8000M"),
        (1, "ReqNodeList=n4", "--mem=8000M"),
        (2, "ReqNodeList=n1,n4", "--mem=8000M"),
        (2, "ReqNodeList=n1", "--mem=9000M"),
        (3, "ReqNodeList=n4 ExcNodeList=n3", "--mem=8000M"),
        (3, "ExcNodeList=n2", "--mem=8000M"),
        (2, "Features=b", "--mem=9000M"),
        (2, "Features=b ExcNodeList=n1", "--mem=9000M"),  # Slurm would refuse that, not we
        (1, "Features=b&c", "--mem=9000M"),
        (2, "Features=[a*1&c*1]", "--mem=9000M"),
    ],
)
def test_only_the_nodes_on_which_the_job_may_run_count(tmp_path: Path, nodes: int, shown: str, options: str) -> None:
    host = site(tmp_path)
    host.environment |= {"SLURM_MEM_PER_NODE": "6000", "SLURM_JOB_NUM_NODES": str(nodes)}
    host.scontrol = host.scontrol.replace(
        'case "$*" in',
        'case "$*" in\n"show hostnames n[1-3]") printf "n1\\nn2\\nn3\\n" ;;\n"show hostnames "*) tr , "\\n" <<<"$3" ;;',
        1,
    ).replace("X=1", f"{shown} X=1", 1)
    host.others["sinfo"] = f'printf "main {FOUR}\\n"'
    host.call(ONE_KILLED + reported(KILL) + "exit 137")
    assert queued(host) == [options]


@pytest.mark.parametrize(
    ("constraint", "memory"),
    [
        ("a", 15000),
        ("c", 12000),
        ("a&b", 15000),
        ("b&c", 12000),
        ("c|a", 15000),
        ("a|b&c", 12000),  # from left to right
        ("a|(b&c)", 15000),
        ("(a|b)&c", 12000),
        ("[c|nothing]", 12000),
        ("c*2", 12000),
        ("aa|c", 12000),
    ],
)
def test_a_constraint_is_read_as_slurm_reads_it(tmp_path: Path, constraint: str, memory: int) -> None:
    host = site(tmp_path)
    host.environment["SLURM_MEM_PER_NODE"] = "10000"
    host.scontrol = host.scontrol.replace("X=1", f"Features={constraint} X=1", 1)
    host.others["sinfo"] = f'printf "main {FOUR}\\n"'
    host.call(ONE_KILLED + reported(KILL) + "exit 137")
    assert queued(host) == [f"--mem={memory}M"]


@pytest.mark.parametrize("memory", [{}, {"SLURM_MEM_PER_NODE": "0"}])
def test_a_job_with_all_the_memory_of_a_small_node_goes_on_with_a_larger_one(
    tmp_path: Path, memory: dict[str, str]
) -> None:
    host = site(tmp_path)
    host.environment = memory
    own = 'case "$*" in *"-n n[1-2]"*) printf "16000+  \\n8000   \\n"'
    host.others["sinfo"] = f'{own} ;; *) printf "{NODES}" ;; esac'
    host.call(ONE_KILLED + reported(KILL) + "exit 137")
    assert queued(host) == ["--mem=12000M"]
    host = site(tmp_path / "silent")
    host.environment, host.others["sinfo"] = memory, ""
    host.call(ONE_KILLED + reported(KILL) + "exit 137")
    assert host.host()["requeue_problem"] == "no answer from sinfo"


def test_memory_for_each_cpu_grows_as_such(tmp_path: Path) -> None:
    host = site(tmp_path)
    host.environment = {"SLURM_MEM_PER_CPU": "1000", "SLURM_CPUS_ON_NODE": "12"}
    host.call(ONE_KILLED + reported(KILL) + "exit 137")
    assert queued(host) == ["--mem-per-cpu=1333M"]


def ended_at_the_limit(host: Host, line: str = TIMEOUT) -> str:
    return f"echo {quote(line)} >>{quote(str(host.run.path / 'slurm.log'))}\n" + BADLY + "kill $PPID\nexit 143"


def test_a_run_ended_at_its_time_limit_goes_on_with_more(tmp_path: Path) -> None:
    host = site(tmp_path)
    assert host.call(ended_at_the_limit(host)) == 143
    assert queued(host) == ["--time=120"]
    record = read_host(host.run.attempt(0))
    assert (record.requeued, record.grown) == (True, Grown("time", 3600, 7200))


@pytest.mark.parametrize(("limit", "options"), [("01:30:00", ["--time=90"]), ("1-00:00:00", ["--time=120"])])
def test_time_is_bounded_by_the_partition(tmp_path: Path, limit: str, options: list[str]) -> None:
    host = site(tmp_path, limit=limit)
    host.call(ended_at_the_limit(host))
    assert queued(host) == options


def test_a_partition_without_more_time_ends_the_run(tmp_path: Path) -> None:
    host = site(tmp_path, limit="01:00:00")
    host.call(ended_at_the_limit(host))
    assert (asked(host, "sbatch"), host.host()["refused"]) == ([], "no-more-time")


@pytest.mark.parametrize(
    "line",
    [
        TIMEOUT.replace(" DUE TO TIME LIMIT", ""),
        TIMEOUT.replace("TIME LIMIT", "PREEMPTION"),
        TIMEOUT.replace("JOB 12", "JOB 11"),
    ],
)
def test_another_end_from_outside_is_no_lack_of_time(tmp_path: Path, line: str) -> None:
    host = site(tmp_path)
    host.call(ended_at_the_limit(host, line))
    assert read_host(host.run.attempt(0)).grown is None


def test_without_its_factor_a_run_gets_no_more(tmp_path: Path) -> None:
    host = site(tmp_path / "a", memory=None)
    host.call(ONE_KILLED + reported(KILL) + "exit 137")
    assert host.host()["refused"] == "no-progress"
    host = site(tmp_path / "b", time=None)
    host.call(ended_at_the_limit(host))
    assert "grown" not in host.host()


def test_a_task_that_got_nowhere_before_the_warning_goes_on_with_more_time(tmp_path: Path) -> None:
    host = site(tmp_path)
    host.environment["SLURM_JOB_END_TIME"] = "1"
    host.call(
        asks(host, 0, progress=False) + 'touch "$attempt/marks/00000.asked" "$attempt/marks/00001.asked"\nexit 75'
    )
    assert queued(host) == ["--time=120"]


def test_a_successor_that_waits_already_gets_the_larger_limit(tmp_path: Path) -> None:
    host = site(tmp_path, by="successor", waiting=True)
    host.call("until [ -s successor.json ]; do sleep 0.1; done\n" + ONE_KILLED + reported(KILL) + "exit 137")
    assert queued(host) == [""]
    assert asked(host, "update") == ["update JobId=13 MinMemoryNode=6000M"]
    assert read_host(host.run.attempt(0)).requeued


@pytest.mark.parametrize("what", ["cancelled", "limit"])
def test_it_goes_on_neither_after_a_cancellation_nor_beyond_the_limit_of_restarts(tmp_path: Path, what: str) -> None:
    host = site(tmp_path)
    cancel = 'touch "$CLUSTERCTL_RUN_DIR/cancel.json"\n' if what == "cancelled" else ""
    host.call(cancel + ONE_KILLED + reported(KILL) + CHECKPOINT + "exit 137", restarts=0 if cancel else 99)
    assert asked(host, "sbatch") == []
    assert host.host()["refused"] == ("cancelled" if cancel else "restart-limit")


def test_a_silent_slurm_is_not_mistaken_for_a_limit(tmp_path: Path) -> None:
    host = site(tmp_path)
    host.scontrol = "exit 1"
    host.call(ONE_KILLED + reported(KILL) + "exit 137")
    assert host.host()["refused"] == "requeue-failed"
    assert host.host()["requeue_problem"] == "no answer from scontrol show job"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["restart.limit=0"], "restart.grow: needs restarts"),
        (["restart.by=requeue"], "keeps its limits"),
        (["resources.mem_per_gpu=4G"], "not with resources.mem_per_gpu"),
        (["restart.grow.memory=1"], "must be a finite number above 1"),
    ],
)
def test_contradictions_are_refused(settings: list[str], message: str) -> None:
    program = ["python", "train.py"]
    with pytest.raises(ConfigError) as caught:
        resolve(None, Cluster(name="c"), ["restart.grow.memory=2", *settings], program=program)
    assert message in str(caught.value)
