"""Stages of a job file."""

from __future__ import annotations

import pytest
from support.mistake import Desk

import clusterctl
from clusterctl.launcher.api.submitting.start import submit_stages
from clusterctl.launcher.api.submitting.submit import plan_stages, stage_names
from clusterctl.shared.record.files import read_json

PIPELINE = """
workload = "command"
argv = ["true"]
[resources]
nodes = 1
[[stage]]
name = "prepare"
argv = ["python", "-c", "print(1)"]
[[stage]]
name = "train"
resources.nodes = 2
env.LR = "1"
[[stage]]
name = "evaluate"
[[stage]]
name = "report"
after = ["train"]
after_any = ["evaluate"]
"""
SBATCH = """\
calls="$CLUSTERCTL_RUNS/../calls"; mkdir -p "$calls"; n=$(($(ls "$calls" | wc -l) + 101)); echo "$@" >"$calls/$n"
[ "$n" != "$REFUSED" ] || { echo "sbatch: error: Batch job submission failed: Invalid qos specification" >&2; exit 1; }
echo "Submitted batch job $n"
"""
SWITCHED_OFF = """\
case "$*" in
"show config") echo "JobSubmitPlugins = lua" ;;
"show job"*) echo "JobId=$3 Requeue=0" ;;
esac
"""
SQUEUE = """\
for one in $(ls "$CLUSTERCTL_RUNS/../calls" 2>/dev/null); do
  printf "$one\\037PENDING\\037JobHeldUser\\037\\0370\\0370\\0370\\037/x\\037\\n"
done
"""


@pytest.fixture
def pipeline(desk: Desk) -> Desk:
    desk.use_slurm(sbatch=SBATCH, squeue=SQUEUE)
    desk.write("pipeline.toml", PIPELINE)
    return desk


BROKEN = """
workload = "command"
argv = ["sh", "-c", "exit ${FAIL:-0}"]
[resources]
nodes = 1
[[stage]]
name = "train"
env.FAIL = "3"
[[stage]]
name = "evaluate"
"""


def calls(desk: Desk) -> list[str]:
    return [path.read_text() for path in sorted((desk.folder / "calls").iterdir())]


def test_each_stage_is_the_job_with_its_own_values(pipeline: Desk) -> None:
    assert stage_names("./pipeline.toml") == ["prepare", "train", "evaluate", "report"]
    plans = plan_stages("./pipeline.toml")
    assert [plan.resolved.job.name for plan in plans] == [f"pipeline-{name}" for name in stage_names("./pipeline.toml")]
    assert [plan.resolved.job.resources.nodes for plan in plans] == [1, 2, 1, 1]
    assert [plan.resolved.job.argv[0] for plan in plans] == ["python", "true", "true", "true"]
    assert plans[1].resolved.job.env == {"LR": "1"}
    assert plans[1].resolved.origins["resources.nodes"] == "pipeline.toml: stage train"


def test_each_stage_waits_for_the_previous_one_or_those_it_names(pipeline: Desk) -> None:
    runs = submit_stages("./pipeline.toml")
    waits = [[word for word in call.split() if word.startswith(("--dep", "--hold"))] for call in calls(pipeline)]
    assert waits == [
        ["--hold"],
        ["--dependency=afterok:101"],
        ["--dependency=afterok:102"],
        ["--dependency=afterok:102,afterany:103"],
    ]
    assert "scontrol release 101" in (pipeline.folder / "asked").read_text()
    assert len({run.id[-20:] for run in runs}) == 1
    record = read_json(runs[3].directory.run_json)
    assert record["stage"] == "report"
    assert record["argv"][-2:] == ["--stage", "report"]
    assert record["after"] == [
        {"run": runs[1].id, "condition": "finished"},
        {"run": runs[2].id, "condition": "ended"},
    ]


def test_a_warning_about_the_project_of_all_stages_is_shown_once(pipeline: Desk) -> None:
    """And what a plugin of the site has done to each of their jobs."""
    (pipeline.project / "away").symlink_to("/nowhere")
    pipeline.use_slurm(sbatch=SBATCH, squeue=SQUEUE, scontrol=SWITCHED_OFF)
    runs = submit_stages("./pipeline.toml")
    assert [[check.name for check in run.warnings] for run in runs] == [["code", "restarts"], *[["restarts"]] * 3]


def test_a_refused_stage_cancels_the_others_and_leaves_nothing(pipeline: Desk) -> None:
    pipeline.set(REFUSED="103")
    with pytest.raises(clusterctl.SlurmError, match="Invalid qos"):
        submit_stages("./pipeline.toml")
    assert "scancel 101 102" in (pipeline.folder / "asked").read_text()
    assert pipeline.run_directories() == []


def test_a_single_stage_is_an_ordinary_submission(pipeline: Desk) -> None:
    run = clusterctl.submit(clusterctl.load("./pipeline.toml", stage="train").job_file, stage="train")
    assert run.name == "pipeline-train"
    with pytest.raises(clusterctl.ConfigError, match="has stages: prepare, train, evaluate, report"):
        clusterctl.submit("./pipeline.toml")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("stage = 1", "stages must be tables", "[[stage]]"),
        ("[[stage]]\nargv = []", "a stage needs a name", "name ="),
        ('[[stage]]\nname = "a b"', "a stage needs a name", "name ="),
        ('[[stage]]\nname = "a"\n[[stage]]\nname = "a"', "duplicate stage name: a", "its own name"),
        ('[[stage]]\nname = "a"\nafter = ["b"]\n[[stage]]\nname = "b"', "after = ['b']", "there are none"),
        ('[[stage]]\nname = "a"\nnodes = 1', "nodes", "clusterctl config keys"),
    ],
)
def test_invalid_stages_are_refused(pipeline: Desk, text: str, message: str, hint: str) -> None:
    pipeline.write("bad.toml", f'workload = "command"\nargv = ["true"]\n{text}\n')
    with pytest.raises(clusterctl.ConfigError) as refused:
        submit_stages("./bad.toml")
    assert message in refused.value.message
    assert hint in refused.value.hint
    assert pipeline.run_directories() == []


def test_resuming_a_stage_resubmits_the_later_ones(desk: Desk) -> None:
    desk.write("broken.toml", BROKEN)
    train, evaluate = submit_stages("./broken.toml", "local")
    with pytest.raises(clusterctl.RunFailed):
        evaluate.wait(timeout=60)
    assert clusterctl.resume(train, overrides={"env.FAIL": "0"}) == train
    assert evaluate.wait(timeout=60).state == train.status().state == "finished"
