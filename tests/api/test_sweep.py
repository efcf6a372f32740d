"""Submitting a sweep: few arrays, ordinary runs, all or nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.mistake import Desk

import clusterctl
from clusterctl.launcher.api.submitting.start import sweep
from clusterctl.launcher.api.sweeps import Sweep, find_sweep
from clusterctl.shared.record.files import read_json, write_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State

# Numbers its jobs 101, 102, ..., records its arguments and script, and refuses job REFUSED.
SBATCH = """\
calls="$CLUSTERCTL_RUNS/../calls"; mkdir -p "$calls"; n=$(($(ls "$calls" | wc -l) + 101))
{ echo "$@"; cat; } >"$calls/$n"
[ "$n" != "$REFUSED" ] || { echo "sbatch: error: Batch job submission failed: Invalid qos specification" >&2; exit 1; }
echo "Submitted batch job $n"
"""
SCONTROL = 'echo "MaxArraySize            = 4"'


def asked(desk: Desk) -> list[str]:
    """The arguments and the script of each call of sbatch."""
    return [path.read_text() for path in sorted((desk.folder / "calls").glob("*"))]


def option(call: str, name: str) -> str:
    return next(
        line.partition("=")[2].strip("'") for line in call.splitlines() if line.startswith(f"#SBATCH --{name}=")
    )


def end(run: RunDir, state: State) -> None:
    """Record the end, as the batch script does."""
    attempt = run.attempt(0)
    attempt.path.mkdir()
    record = {"attempt": 0, "job_id": "7", "restart_count": 0, "nodes": "n1", "start": 1.0, "end": 2.0}
    write_json(attempt.host_json, {**record, "exit_code": int(state is State.FAILED), "signal": ""})
    if state is State.FINISHED:
        write_json(run.finished_json, {"attempt": 0, "time": 2})


@pytest.fixture
def desk_with_slurm(desk: Desk) -> Desk:
    desk.use_slurm(sbatch=SBATCH)
    return desk


def test_one_sbatch_call_submits_ordinary_runs_that_share_a_snapshot(desk_with_slurm: Desk) -> None:
    found = sweep("synthetic", axes=["train.lr=1e-3,1e-2", "train.seed=0..2"], at_once=2)
    (call,) = asked(desk_with_slurm)
    assert option(call, "array") == "0-5%2"
    assert f"element=({' '.join(f'{found.id}.{place}' for place in range(6))})" in call
    assert [run.id for run in found.runs] == [f"{found.id}.{place}" for place in range(6)]
    assert [run.job_id for run in found.runs] == [f"101_{place}" for place in range(6)]
    assert len({run.directory.snapshot for run in found.runs}) == 1
    assert found.settings[4] == {"train.lr": "1e-2", "train.seed": "1"}
    record = read_json(found.runs[4].directory.run_json)
    assert (record["job"]["train"]["lr"], record["job"]["train"]["seed"]) == (0.01, 1)
    assert record["argv"][:5] == ["submit", "synthetic", "--sweep", "train.lr=1e-3,1e-2", "--sweep"]
    assert clusterctl.find(found.runs[4].id) == found.runs[4]
    assert find_sweep(found.id) == find_sweep("@last") == found


def test_slurm_writes_an_elements_output_to_the_log_of_its_run(desk_with_slurm: Desk) -> None:
    found = sweep("synthetic", axes=["train.seed=0..1"])
    (call,) = asked(desk_with_slurm)
    for place, run in enumerate(found.runs):
        log = Path(option(call, "output").replace("%a", str(place)))
        log.write_text("slurmstepd: error\n")
        assert (run.path / "slurm.log").read_text() == "slurmstepd: error\n"


def test_runs_with_different_requests_are_in_separate_arrays(desk_with_slurm: Desk) -> None:
    found = sweep("synthetic", axes=["resources.nodes=1,2", "train.seed=0..1"])
    first, second = asked(desk_with_slurm)
    assert [option(call, "nodes") for call in (first, second)] == ["1", "2"]
    assert f"element=({found.id}.2 {found.id}.3)" in second
    assert [run.job_id for run in found.runs] == ["101_0", "101_1", "102_0", "102_1"]
    assert not any("--dependency" in call for call in (first, second))


def test_arrays_respect_maxarraysize_and_at_once_spans_them(desk: Desk) -> None:
    desk.use_slurm(sbatch=SBATCH, scontrol=SCONTROL)
    found = sweep("synthetic", axes=["train.seed=0..9"], at_once=3)
    calls = asked(desk)
    assert [option(call, "array") for call in calls] == ["0-3%3", "0-3%3", "0-1%3"]
    waits = ["--dependency=afterany:101" in calls[1], "--dependency=afterany:102" in calls[2]]
    assert waits == [True, True]
    assert "--dependency" not in calls[0].splitlines()[0]
    assert found.runs[9].job_id == "103_1"


def test_a_refused_array_cancels_the_others_and_leaves_nothing(desk_with_slurm: Desk) -> None:
    desk_with_slurm.set(REFUSED="102")
    with pytest.raises(clusterctl.SlurmError, match="Invalid qos"):
        sweep("synthetic", axes=["resources.nodes=1,2"])
    assert "scancel 101" in (desk_with_slurm.folder / "asked").read_text()
    assert desk_with_slurm.run_directories() == []
    assert list((desk_with_slurm.runs / ".sweeps").iterdir()) == []


def test_one_invalid_run_means_nothing_is_submitted(desk_with_slurm: Desk) -> None:
    with pytest.raises(clusterctl.ConfigError) as refused:
        sweep("synthetic", axes=["train.lr=1e-3,-1,fast", "train.seed=0..1"])
    assert refused.value.message.startswith("4 of 6 runs would be invalid")
    assert "train.lr=-1 train.seed=0" in refused.value.message
    assert desk_with_slurm.asked("sbatch") == 0
    assert desk_with_slurm.run_directories() == []


def test_a_swept_secret_is_written_to_no_file(desk_with_slurm: Desk) -> None:
    desk_with_slurm.write("job.toml", 'workload = "command"\nargv = ["true"]\n')
    found = sweep("./job.toml", axes=["env.MY_TOKEN=hunter2,hunter3", "env.LR=1"])
    assert len(asked(desk_with_slurm)) == 2  # all elements of an array share sbatch's environment
    files = [path for path in desk_with_slurm.runs.rglob("*") if path.is_file() and "lib" not in path.parts]
    assert not [path for path in files if b"hunter" in path.read_bytes()]
    assert len(found.runs) == 2


def test_placeholders_in_the_program_are_filled_in(desk_with_slurm: Desk) -> None:
    desk_with_slurm.write("t.py", "")
    found = sweep(program=["python", "t.py", "--lr={lr}"], axes=["lr=1e-3,1e-2"])
    jobs = [read_json(run.directory.run_json)["job"] for run in found.runs]
    assert [job["argv"] for job in jobs] == [["python", "t.py", "--lr=1e-3"], ["python", "t.py", "--lr=1e-2"]]
    end(found.runs[0].directory, State.FINISHED)
    again = resume_sweep_of(desk_with_slurm, found, "lr=1e-2,1e-1")
    assert read_json(again.runs[2].directory.run_json)["job"]["argv"] == ["python", "t.py", "--lr=1e-1"]


def resume_sweep_of(desk: Desk, found: Sweep, *axes: str) -> Sweep:
    for run in found.runs:
        if not run.directory.attempts():
            end(run.directory, State.FAILED)
    return found.resume(axes=axes)


@pytest.mark.parametrize("name", ["port", "host", "rank", "server", "nodes"])
def test_the_placeholders_of_roles_are_no_sweep_keys(desk_with_slurm: Desk, name: str) -> None:
    text = '[[role]]\nname = "server"\nprogram = ["true", "{port}", "{server.host}"]\n'
    desk_with_slurm.write("parts.toml", f'code = "."\n{text}')
    with pytest.raises(clusterctl.UsageError, match="placeholders of roles are not for sweeps") as caught:
        sweep("./parts.toml", axes=[f"{name}=1,2"])
    assert f"role.server.env.{name.upper()}" in caught.value.hint
    assert not asked(desk_with_slurm)


def test_resuming_submits_unfinished_runs_and_new_values_in_one_array(desk_with_slurm: Desk) -> None:
    found = sweep("synthetic", axes=["train.seed=0..2"])
    for place, state in enumerate((State.FINISHED, State.FAILED, State.FINISHED)):
        end(found.runs[place].directory, state)
    again = found.resume(axes=["train.seed=2..4"])
    call = asked(desk_with_slurm)[1]
    assert f"element=({found.id}.1 {found.id}.3 {found.id}.4)" in call
    assert [run.job_id for run in again.runs] == ["101_0", "102_0", "101_2", "102_1", "102_2"]
    assert [row["train.seed"] for row in again.settings] == ["0", "1", "2", "3", "4"]
    assert read_json(again.runs[4].directory.run_json)["job"]["train"]["seed"] == 4
    assert again.runs[4].directory.snapshot == found.runs[0].directory.snapshot
    assert (again.runs[1].directory.submissions / "0" / "run.json").exists()


def test_new_values_run_the_sweeps_code_even_if_its_folder_changed(desk_with_slurm: Desk) -> None:
    program = desk_with_slurm.write("t.py", "")
    found = sweep(program=["python", "t.py", "--lr={lr}"], axes=["lr=1,2"])
    for run in found.runs:
        end(run.directory, State.FINISHED)
    program.unlink()
    assert len(found.resume(axes=["lr=3,4"]).runs) == 4


def test_a_refused_resume_of_a_sweep_changes_nothing(desk_with_slurm: Desk) -> None:
    found = sweep("synthetic", axes=["train.seed=0..1"])
    for run in found.runs:
        end(run.directory, State.FAILED)
    before = {path: path.read_bytes() for path in sorted(desk_with_slurm.runs.rglob("*.json"))}
    desk_with_slurm.set(REFUSED="102")
    with pytest.raises(clusterctl.SlurmError, match="Invalid qos"):
        found.resume(axes=["train.seed=2"])
    assert {path: path.read_bytes() for path in sorted(desk_with_slurm.runs.rglob("*.json"))} == before
    assert [run.job_id for run in found.runs] == ["101_0", "101_1"]


def test_a_sweep_is_unchanged_if_one_of_its_runs_is_already_being_resumed(desk_with_slurm: Desk) -> None:
    found = sweep("synthetic", axes=["train.seed=0..1"])
    for run in found.runs:
        end(run.directory, State.FAILED)
    (found.runs[1].path / ".resume").mkdir()
    before = {path: path.read_bytes() for path in sorted(desk_with_slurm.runs.rglob("*.json"))}
    with pytest.raises(clusterctl.UsageError, match="already being resumed"):
        found.resume(axes=["train.seed=2"])
    assert {path: path.read_bytes() for path in sorted(desk_with_slurm.runs.rglob("*.json"))} == before


def test_a_finished_sweep_cannot_be_resumed(desk_with_slurm: Desk) -> None:
    found = sweep("synthetic", axes=["train.seed=0"])
    end(found.runs[0].directory, State.FINISHED)
    with pytest.raises(clusterctl.UsageError, match=r"all runs of synthetic-.* have finished: nothing to resume"):
        found.resume()
    with pytest.raises(clusterctl.UsageError, match=r"the sweep varies train\.seed"):
        found.resume(axes=["train.lr=1"])


def test_a_sweep_is_not_a_run_but_its_elements_are(desk_with_slurm: Desk) -> None:
    found = sweep("synthetic", axes=["train.seed=0..1"])
    for name in (found.id, "@last", "synthetic"):
        with pytest.raises(clusterctl.UsageError, match="is a sweep") as refused:
            clusterctl.find(name)
        assert f"{found.id}.0" in refused.value.hint
    later = clusterctl.submit("synthetic")
    assert clusterctl.find("@last") == clusterctl.find("synthetic") == later


def test_each_element_runs_its_own_script_unless_another_user_owns_it(desk_with_slurm: Desk) -> None:
    found = sweep("synthetic", axes=["train.seed=0..1"])
    (script,) = found.directory.array(0).pickles.glob("101_submission.sh")

    def element(place: int) -> tuple[int, str]:
        environment = {"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": str(place)}
        done = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    for run in found.runs:
        run.directory.script.write_text('echo "$PWD"\n')
    assert [element(place) for place in range(2)] == [(0, f"{run.path}\n") for run in found.runs]
    if os.geteuid() == 0:
        os.chown(found.runs[1].path, 12345, -1)
        assert element(1) == (
            77,
            f"clusterctl[launch]: not owned by this user, or writable by others: {found.runs[1].path}\n",
        )
