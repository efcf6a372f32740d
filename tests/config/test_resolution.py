"""Layers of values, their origins, and where each mistake is reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.launcher.config import load_cluster, resolve, resolve_again
from clusterctl.shared.errors import ClusterctlError, ConfigError, NotFoundError, UsageError
from clusterctl.shared.spec import Cluster, Container, RedditTrain, to_record
from clusterctl.shared.spec.job import Notify

JOB = """\
workload = "reddit"

[resources]
nodes = 2
partition = "from-job"

[container]
image = "./image.sqsh"
mounts = ["/job:/job"]

[env]
B = "job"

[data]
root = "../data"

[train]
lr = 0.5
"""
CLUSTER = Cluster(
    name="c",
    partition="from-cluster",
    account="from-cluster",
    gpus_per_node=4,
    container=Container(mounts=("/cluster:/cluster",), image="cluster.sqsh"),
    env={"A": "cluster", "B": "cluster"},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "mine.toml").write_text(JOB)
    return tmp_path


def failure(folder: Path, text: str, *settings: str) -> ClusterctlError:
    (folder / "jobs" / "bad.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        resolve("bad", CLUSTER, settings, {}, folder)
    return caught.value


def test_later_layers_win_and_every_value_knows_its_origin(folder: Path) -> None:
    environment = {"SBATCH_ACCOUNT": "from-environment", "SBATCH_PARTITION": "from-environment"}
    resolved = resolve("mine", CLUSTER, ["train.epochs=3"], environment, folder)
    job, origins = resolved.job, resolved.origins
    assert (job.resources.account, origins["resources.account"]) == ("from-environment", "environment SBATCH_ACCOUNT")
    assert job.resources.partition == "from-job"
    assert origins["resources.partition"].endswith("mine.toml:5")
    assert (job.resources.gpus_per_node, origins["resources.gpus_per_node"]) == (4, "cluster c")
    assert (job.resources.tasks_per_node, origins["resources.tasks_per_node"]) == (4, "default: one a GPU")
    assert (job.train.epochs, origins["train.epochs"]) == (3, "--set")  # type: ignore[attr-defined]
    assert "train.dropout" not in origins


def test_tables_are_merged_by_key_and_mounts_appended(folder: Path) -> None:
    job = resolve("mine", CLUSTER, [], {}, folder).job
    assert job.env == {"A": "cluster", "B": "job"}
    assert job.container.mounts == ("/cluster:/cluster", "/job:/job")


def test_a_run_can_do_without_its_clusters_image(folder: Path) -> None:
    cluster = replace(CLUSTER, container=replace(CLUSTER.container, code="image"))
    (folder / "jobs" / "bare.toml").write_text('workload = "reddit"\n')
    assert resolve("bare", cluster, [], {}, folder).job.container.image == "cluster.sqsh"
    assert resolve("bare", cluster, ["container.image=none"], {}, folder).job.container == Container()


def test_an_empty_table_removes_nothing(folder: Path) -> None:
    (folder / "jobs" / "bare.toml").write_text('workload = "reddit"\n[env]\n')
    assert resolve("bare", CLUSTER, [], {}, folder).job.env == {"A": "cluster", "B": "cluster"}


def test_paths_are_relative_to_their_file_or_to_the_current_folder_if_typed(folder: Path) -> None:
    job = resolve("mine", CLUSTER, [], {}, folder).job
    assert job.data.root == str(folder / "data")
    assert job.container.image == str(folder / "jobs" / "image.sqsh")
    typed = resolve("mine", CLUSTER, ["data.root=elsewhere"], {}, folder).job
    assert typed.data.root == str(folder / "elsewhere")


def test_a_program_that_saves_on_its_own_signal_goes_back_to_the_queue(folder: Path) -> None:
    (folder / "jobs" / "own.toml").write_text('workload = "command"\nargv = ["true"]\n')

    def at_limit(*settings: str) -> bool | None:
        return resolve("own", CLUSTER, list(settings), {}, folder).job.restart.at_limit

    assert at_limit() is False
    assert at_limit("restart.signal=USR1") is True
    assert at_limit("restart.signal=TERM", "restart.at_limit=false") is False
    assert at_limit("restart.signal=TERM", "resources.warning=0") is False
    assert at_limit("restart.at_limit=true") is True


@pytest.mark.parametrize(
    ("runtime", "settings", "expected"),
    [
        ("builtin", [], True),
        ("apptainer", [], True),
        ("pyxis", [], False),  # its step would unpack the image once more
        ("pyxis", ["restart.standby=true"], True),
        ("pyxis", ["container.image=none"], True),
        ("builtin", ["restart.standby=false"], False),
        ("builtin", ["resources.gpus_per_node=1"], False),
        ("builtin", ["container.writable=true"], False),
        ("builtin", ["container.code=image"], False),
        ("builtin", ["container.writable=true", "container.image=none"], True),
    ],
)
def test_tasks_in_an_image_have_standbys_by_default_where_they_cost_no_unpacking(
    folder: Path, runtime: str, settings: list[str], expected: bool
) -> None:
    cluster = replace(CLUSTER, gpus_per_node=None, container_runtime=runtime)
    assert resolve("mine", cluster, settings, {}, folder).job.restart.standby is expected


def test_the_warning_leaves_most_of_a_short_job(folder: Path) -> None:
    assert resolve("mine", CLUSTER, ["resources.time=2m"], {}, folder).job.resources.warning == 30
    assert resolve("mine", CLUSTER, ["resources.time=4h"], {}, folder).job.resources.warning == 120


def test_a_command_runs_a_snapshot_of_the_current_folder(folder: Path) -> None:
    (folder / "jobs" / "own.toml").write_text('workload = "command"\nargv = ["python", "train.py"]\n')
    assert resolve("own", CLUSTER, [], {}, folder).job.code == str(folder)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("train.lr=3e-3", 0.003),
        ("train.lr=.003", 0.003),
        ("train.fan_out=[5, 5]", (5, 5)),
        ("resources.time=01:00:00", 3600),
        ("resources.time=4h", 14400),
        ("env.PORT=8080", "8080"),
        ("env.QUOTED='a b'", "a b"),
        ("env.EQUALS=a=b", "a=b"),
        ("name=123", "123"),
        ('argv=["x"]', None),
    ],
)
def test_set_takes_toml_or_plain_text_for_text_keys(folder: Path, setting: str, value: object) -> None:
    if value is None:
        assert "takes a program" in failure(folder, 'workload = "reddit"', setting).message
        return
    found: object = resolve("mine", CLUSTER, [setting], {}, folder).job
    for name in setting.partition("=")[0].split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    assert found == value


@pytest.mark.parametrize("setting", ["train.lr", "=3", "train..lr=3"])
def test_set_without_key_or_value_is_a_usage_error(folder: Path, setting: str) -> None:
    with pytest.raises(UsageError, match="KEY=VALUE"):
        resolve("mine", CLUSTER, [setting], {}, folder)


def test_every_problem_of_a_file_is_reported_with_its_line_and_a_suggestion(folder: Path) -> None:
    error = failure(folder, 'workload = "reddit"\n[train]\nepoch = 3\nlr = "fast"\n[resource]\nnodes = 2\n')
    lines = error.message.splitlines()
    assert len(lines) == 4
    assert any("bad.toml:3: train.epoch: unknown key (did you mean epochs?)" in line for line in lines)
    assert any("bad.toml:4: train.lr: expected a number, not 'fast'" in line for line in lines)
    assert any("bad.toml:6: resource: unknown key (did you mean resources?)" in line for line in lines)
    assert error.hint


def test_a_schema_comment_counts_as_a_line(folder: Path) -> None:
    first = "#:schema ../schemas/job.json [train] x = 3\n"
    error = failure(folder, first + 'workload = "reddit"\n[train]\nepoch = 3\n')
    assert "bad.toml:4: train.epoch: unknown key" in error.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workload = ", "not valid TOML"),
        ('workload = "command"', 'needs the program, such as ["python", "train.py"]'),
        ('workload = "reddit"\nargv = ["x"]', "only workload"),
        ('workload = "reddit"\n[resources]\ntime = "2m"\nwarning = "2m"', "must be shorter than the time"),
        ('workload = "reddit"\n[resources]\ngpus_per_node = 0\n[train]\ndevice = "cuda"', "gpus_per_node"),
        ('workload = "reddit"\n[train]\nfan_out = []', "must not be empty"),
        ('workload = "reddit"\n[resources.sbatch]\noutput = "x"', "clusterctl sets this option"),
        ('workload = "reddit"\n[env]\nX = "a\\u0000b"', "NUL"),
        ("resources = 3", "expected a table"),
    ],
)
def test_a_mistake_is_reported_with_its_file(folder: Path, text: str, message: str) -> None:
    error = failure(folder, text)
    assert message in error.message
    assert "bad.toml" in error.message


def test_an_unknown_job_suggests_the_nearest_name(folder: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        resolve("mne", CLUSTER, [], {}, folder)
    assert caught.value.hint == "did you mean mine?"
    with pytest.raises(NotFoundError, match="no such job file"):
        resolve("./jobs/none.toml", CLUSTER, [], {}, folder)


def test_nobody_trains_on_a_login_node_by_accident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text("#!/bin/sh\n")
    sbatch.chmod(0o755)
    with pytest.raises(UsageError, match="which cluster") as caught:
        load_cluster(None, {"PATH": str(sbatch.parent)}, tmp_path)
    assert "`cluster=NAME`" in caught.value.hint
    assert load_cluster(None, {"PATH": str(tmp_path)}, tmp_path).name == "local"
    assert load_cluster("local", {"PATH": str(sbatch.parent)}, tmp_path).kind == "emulator"
    (tmp_path / "config" / "clusterctl").mkdir(parents=True)
    (tmp_path / "config" / "clusterctl" / "config.toml").write_text('cluster = "local"\n')
    assert load_cluster(None, {"PATH": str(sbatch.parent)}, tmp_path).name == "local"


def test_notify_settings_come_from_the_user_then_the_cluster_then_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "clusterctl").mkdir(parents=True)
    user = '[notify]\nurl_variable = "MINE"\nformat = "slack"\nevents = ["failed"]\n'
    (tmp_path / "config" / "clusterctl" / "config.toml").write_text(user)
    (tmp_path / "job.toml").write_text('workload = "synthetic"\n[notify]\nevents = ["finished"]\n')
    cluster = Cluster(name="c", notify=Notify(format="matrix"))
    resolved = resolve("./job.toml", cluster, environment={"MINE": "https://x.org/T0K3N"}, cwd=tmp_path)
    assert resolved.job.notify == Notify(url_variable="MINE", format="matrix", events=("finished",))
    assert resolved.origins["notify.url_variable"].endswith("config.toml:2")
    assert resolved.origins["notify.format"] == "cluster c"
    assert resolved.secrets.hide("curl https://x.org/T0K3N") == "curl ***"
    assert "MINE" in resolved.secrets


def test_a_mistake_in_a_cluster_file_is_reported_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('kind = "slrum"\npartitions = "x"\n')
    with pytest.raises(ConfigError) as caught:
        load_cluster("./c.toml", {}, tmp_path)
    assert "c.toml:1: kind: must be one of slurm, emulator, sandbox" in caught.value.message
    assert "c.toml:2: partitions: unknown key (did you mean partition?)" in caught.value.message


def recorded(folder: Path, cluster: Cluster, text: str, *settings: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The job and its origins, as run.json records them."""
    (folder / "jobs" / "before.toml").write_text(text)
    resolved = resolve("before", cluster, settings, {}, folder)
    record: dict[str, Any] = json.loads(json.dumps(to_record(resolved.secrets.hide_in(resolved.job))))
    return record, resolved.origins


def test_resolving_a_recorded_job_gives_the_same_job(folder: Path) -> None:
    text = f'{JOB}seed = 3\n[resources.sbatch]\nhint = "nomultithread"\n[checkpoint]\nevery = "90s"\n'.replace(
        "nodes = 2", 'nodes = 2\ntime = "90m"'
    )
    first = recorded(folder, CLUSTER, text)
    resolved = resolve_again(*first, CLUSTER, environment={})
    assert to_record(resolved.job) == first[0]
    assert resolved.job.resources.time == 5400
    assert resolved.origins["train.lr"].endswith("before.toml:19")


def test_computed_and_cluster_values_are_resolved_anew(folder: Path) -> None:
    first = recorded(folder, CLUSTER, JOB)
    other = Cluster(name="d", partition="elsewhere", account="other", gpus_per_node=2, env={"A": "other"})
    resources = resolve_again(*first, other, ["resources.time=8"], {}).job.resources
    assert (resources.gpus_per_node, resources.tasks_per_node, resources.account) == (2, 2, "other")
    assert (resources.partition, resources.nodes) == ("from-job", 2)
    assert (resources.time, resources.warning) == (480, 120)
    assert resolve_again(*first, other, [], {}).job.env == {"A": "other", "B": "job"}


def test_secrets_of_a_recorded_job_come_from_the_environment_or_are_reported_missing(folder: Path) -> None:
    text = JOB.replace("[env]\n", '[env]\nHF_TOKEN = "one"\nAPI_KEY = "two"\n')
    first = recorded(folder, CLUSTER, text)
    assert first[0]["env"]["HF_TOKEN"] == "***"
    with pytest.raises(ConfigError, match="not stored: API_KEY, HF_TOKEN|not stored: HF_TOKEN, API_KEY") as caught:
        resolve_again(*first, CLUSTER, environment={})
    assert "export " in caught.value.hint
    given = {"HF_TOKEN": "three", "API_KEY": "four"}
    resolved = resolve_again(*first, CLUSTER, environment=given)
    assert resolved.job.env["HF_TOKEN"] == "three"
    assert resolved.secrets.hide("three and four") == "*** and ***"
    typed = resolve_again(*first, CLUSTER, ["env.HF_TOKEN=five", "env.API_KEY=sixx"], {})
    assert typed.job.env["HF_TOKEN"] == "five"


def test_a_mistake_in_a_change_is_reported_like_one_in_a_job_file(folder: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean epochs"):
        resolve_again(*recorded(folder, CLUSTER, JOB), CLUSTER, ["train.epoch=3"], {})


def test_batch_size_and_global_batch_size_cannot_both_be_set(folder: Path) -> None:
    text = JOB + "batch_size = 128\n"
    in_the_file = failure(folder, f"{text}global_batch_size = 512\n")
    for error in (in_the_file, failure(folder, text, "train.global_batch_size=512")):
        assert "train.global_batch_size: cannot be set together with batch_size" in error.message
        assert "remove batch_size or global_batch_size" in error.hint
        assert error.exit_code == 3
    resolved = resolve("mine", CLUSTER, ["train.global_batch_size=512"], {}, folder)
    assert isinstance(resolved.job.train, RedditTrain)
    assert (resolved.job.train.batch_size, resolved.job.train.global_batch_size) == (None, 512)


@pytest.mark.parametrize(
    ("before", "changes", "sizes"),
    [
        ("batch_size = 128", [], (128, None)),
        ("global_batch_size = 512", [], (None, 512)),
        ("batch_size = 128", ["train.global_batch_size=512"], (None, 512)),
        ("", ["train.global_batch_size=512"], (None, 512)),
        ("global_batch_size = 512", ["train.batch_size=64"], (64, None)),
    ],
)
def test_a_resumed_run_keeps_its_batch_size_or_switches_to_the_new_one(
    folder: Path, before: str, changes: list[str], sizes: tuple[int | None, int | None]
) -> None:
    train = resolve_again(*recorded(folder, CLUSTER, f"{JOB}{before}\n"), CLUSTER, changes, {}).job.train
    assert isinstance(train, RedditTrain)
    assert (train.batch_size, train.global_batch_size) == sizes


def test_a_resume_cannot_set_both_batch_sizes(folder: Path) -> None:
    both = ["train.batch_size=64", "train.global_batch_size=512"]
    with pytest.raises(ConfigError, match="cannot be set together"):
        resolve_again(*recorded(folder, CLUSTER, JOB), CLUSTER, both, {})
