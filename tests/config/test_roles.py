"""The roles of a job file: what a job asks for because of them, and what is refused before anything is submitted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.launcher.config import Resolved, resolve, roles
from clusterctl.launcher.config.resolution import resolve_again
from clusterctl.shared.errors import ConfigError, UsageError
from clusterctl.shared.spec import Cluster, to_record
from clusterctl.shared.spec.values import GpuCount

HERE = Cluster(name="here", partition="cpu")

TWO = """
code = "."
[[role]]
name = "features"
nodes = 2
program = ["python", "serve.py", "--port", "{port}"]
ready = "http://{host}:{port}/health"
[[role]]
name = "trainer"
gpus_per_node = 4
cpus_per_task = 3
program = ["torchrun", "train.py", "--features", "{features.addresses}", '{"a": {"b": 1}}', "{{step}}"]
needs = ["features"]
ends = "job"
"""


def resolved(folder: Path, text: str, *settings: str, cluster: Cluster = HERE) -> Resolved:
    (folder / "job.toml").write_text(text, encoding="utf-8")
    return resolve("./job.toml", cluster, settings, {}, folder)


def refused(folder: Path, text: str, *settings: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        resolved(folder, text, *settings)
    return caught.value


def test_the_roles_decide_what_the_job_asks_for(tmp_path: Path) -> None:
    job = resolved(tmp_path, TWO).job
    assert job.workload == "command"
    resources = job.resources
    assert (resources.nodes, resources.tasks_per_node, resources.cpus_per_task) == (3, 1, 3)
    assert resources.gpus_per_node == 4
    assert [role.tasks_per_node for role in job.role.values()] == [1, 1]  # torchrun starts the others


def test_a_role_has_a_rank_for_each_gpu_unless_a_launcher_starts_them(tmp_path: Path) -> None:
    job = resolved(tmp_path, TWO.replace('"torchrun", "train.py"', '"python", "train.py"')).job
    assert job.role["trainer"].tasks_per_node == 4
    assert job.resources.tasks_per_node == 4


def test_roles_that_share_nodes_add_up(tmp_path: Path) -> None:
    text = TWO.replace("nodes = 2", "nodes = 2\ngpus_per_node = 1\ncpus_per_task = 2").replace(
        'name = "trainer"', 'name = "trainer"\nshare = true'
    )
    cluster = Cluster(name="here", gpus_per_node=GpuCount("a100:8"))
    resources = resolved(tmp_path, text, cluster=cluster).job.resources
    assert (resources.nodes, resources.tasks_per_node, resources.cpus_per_task) == (2, 2, 3)
    assert resources.gpus_per_node is not None
    assert resources.gpus_per_node.written == "a100:5"  # not all 8 of the cluster file


def test_values_of_a_role_can_be_set_and_are_kept_for_later_attempts(tmp_path: Path) -> None:
    first = resolved(tmp_path, TWO, "role.features.nodes=4", "role.features.ready_within=90")
    assert first.job.resources.nodes == 5
    assert first.job.role["features"].ready_within == 90
    record = json.loads(json.dumps(to_record(first.job)))
    again = resolve_again(record, first.origins, HERE, ["role.trainer.nodes=2"], {})
    assert again.job.resources.nodes == 6
    assert again.job.role["trainer"].program == first.job.role["trainer"].program


def test_a_role_has_the_image_of_the_job_its_own_or_none(tmp_path: Path) -> None:
    text = TWO.replace("nodes = 2", 'nodes = 2\nimage = "./its.sqsh"') + '\n[[role]]\nname = "beside"\nshare = true\n'
    job = resolved(tmp_path, f'{text}image = "none"\nprogram = ["true"]\n[container]\nimage = "/images/job.sqsh"').job
    found = [job.image_of(role) for role in job.role.values()]
    assert found == [f"{tmp_path}/its.sqsh", "/images/job.sqsh", None]
    assert job.images == ("/images/job.sqsh", f"{tmp_path}/its.sqsh")
    shown = [*roles.shown(job)]
    assert shown[0].endswith(f", image {tmp_path}/its.sqsh")
    assert "image" not in shown[1]
    assert shown[2].endswith(", image none")
    switched = resolved(tmp_path, text + 'program = ["true"]', "role.features.image=none").job
    assert switched.images == ()


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            TWO.replace("nodes = 2", 'nodes = 2\nimage = "/i.sqsh"').replace(
                'code = "."', 'code = "."\nenvironment = "uv.lock"'
            ),
            "an image has its own environment; remove this key, or the image of its roles",
            "",
        ),
        (
            TWO.replace("nodes = 2", 'nodes = 2\nimage = "/i.sqsh"') + "\n[resources]\nlocal_code = true",
            "an image is on a local disk already",
            "",
        ),
        (TWO.replace("nodes = 2", 'nodes = 2\nimage = ""'), "role.features.image", ""),
        (TWO.replace('name = "trainer"', 'name = "features"'), "two roles of one name: features", "its own name"),
        (TWO.replace('name = "trainer"', 'name = "FEATURES"'), "two roles of one name", "its own name"),
        (TWO.replace('name = "trainer"\n', ""), "a role needs a name", "letters"),
        (TWO.replace('name = "trainer"', 'name = "../x"'), "a role needs a name", "letters"),
        (TWO.replace('["features"]', '["feature"]'), "no such role: feature (did you mean features?)", "features"),
        (TWO.replace('["features"]', '["trainer"]'), "trainer needs trainer", "remove one"),
        (TWO.replace("nodes = 2", 'nodes = 2\nneeds = ["trainer"]'), "features needs trainer needs features", ""),
        (TWO.replace("{port}", "{prot}"), "unknown placeholder: {prot} (did you mean port?)", "{{prot}}"),
        (TWO.replace("{features.addresses}", "{features.adress}"), "unknown placeholder: {features.adress}", ""),
        (TWO.replace("{{step}}", "{step}"), "unknown placeholder: {step}", "{{step}}"),
        (TWO.replace("http://", "https://"), "https is not supported", "tcp://"),
        (TWO.replace("http://{host}:{port}/health", "http://{host}/health"), "needs a host and a port", ""),
        (TWO.replace("http://{host}:{port}/health", "health"), "cannot be: health", "log:TEXT"),
        (TWO.replace("http://{host}:{port}/health", "log:"), "nothing after log:", "log:TEXT"),
        (TWO.replace("nodes = 2", 'nodes = 2\npartition = "gpu"'), "partition applies to the whole job", "hetjob"),
        (TWO.replace("nodes = 2", 'nodes = 2\nconstraint = "v100"'), "constraint applies to the whole job", "hetjob"),
        (TWO.replace("nodes = 2", "nodes = 2\nshare = true"), "no role before it has nodes", ""),
        (TWO.replace('"trainer"', '"trainer"\nshare = true\nnodes = 3'), "role features, whose nodes it shares", ""),
        (TWO.replace("nodes = 2", "nods = 2"), "unknown key (did you mean nodes?)", ""),
        (TWO.replace("nodes = 2", "nodes = 0"), "role.features.nodes", ""),
        (TWO.replace("nodes = 2", 'nodes = 2\nrestart = "always"'), "restart", ""),
        (TWO.replace("nodes = 2", "nodes = 2\nprogram = []").replace('program = ["python"', '# ["python"'), "", ""),
        (TWO.replace("nodes = 2", 'nodes = 2\nenv = {API_TOKEN = "x"}'), "a secret", "[env]"),
        (TWO.replace("nodes = 2", 'nodes = 2\nenv = {SLURM_JOB_ID = "x"}'), "sets this variable", ""),
        (TWO.replace('"python", "serve.py"', '"serve.py"'), "a script: serve.py", "python serve.py"),
        (TWO.replace('"torchrun"', '"mpirun"').replace("gpus", "tasks"), "would start mpirun again", ""),
        ('argv = ["x"]\n' + TWO, "the roles have the programs", ""),
        ('workload = "cora"\n' + TWO, "workload", ""),
        ('workload = "reddit"\n' + TWO, "only for workload", ""),
        (TWO + "\n[resources]\nnodes = 2", "the roles decide about it", "role"),
        (TWO + "\n[resources]\nspare_nodes = 1", "not with roles", ""),
        (TWO + '\n[resources]\ngpus_per_task = "1"', "not with roles", ""),
        ("role = []", "roles must be tables", "[[role]]"),
        ("[role.x]\nnodes = 1", "roles must be tables", "[[role]]"),
        (TWO.replace("nodes = 2", "nodes = 200000"), "at most 100000", ""),
    ],
)
def test_what_cannot_be_meant_is_refused_at_submission(tmp_path: Path, text: str, message: str, hint: str) -> None:
    (tmp_path / "serve.py").touch()
    error = refused(tmp_path, text)
    assert message in error.message
    assert hint in error.hint
    assert "job.toml" in error.message


@pytest.mark.parametrize(
    "ready",
    [
        "http://{features.host}:{features.port}/{rank}",
        "tcp://{features.addresses}",
        "http://{host}:80{local_rank}/",
        "file:{features.host}.{node}",
        "log:rank {rank} of {ranks} listens {{now}}",
    ],
)
def test_every_placeholder_can_be_part_of_a_ready(tmp_path: Path, ready: str) -> None:
    job = resolved(tmp_path, TWO.replace("http://{host}:{port}/health", ready)).job
    assert job.role["features"].ready == ready


def test_the_line_of_a_mistake_is_that_of_its_own_role(tmp_path: Path) -> None:
    text = TWO.replace("cpus_per_task = 3", "cpus_per_task = 0")
    line = text.splitlines().index("cpus_per_task = 0") + 1
    assert refused(tmp_path, text).message.endswith(f"job.toml:{line}: role.trainer.cpus_per_task: must be at least 1")


def test_nodes_on_the_command_line_are_refused_with_the_way(tmp_path: Path) -> None:
    error = refused(tmp_path, TWO, "resources.nodes=7")
    assert "`overrides=`" in error.message
    assert "role.features.nodes" in error.hint


@settings(deadline=None)
@given(st.recursive(st.none() | st.integers(-2, 3) | st.text(max_size=3), lambda one: st.lists(one, max_size=3)))
def test_no_value_of_a_key_ends_in_a_traceback(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    folder = tmp_path_factory.mktemp("roles")
    for key in ("needs", "program", "ready", "env", "nodes", "share"):
        shown = "''" if value is None else json.dumps(value)
        program = "" if key == "program" else 'program = ["true"]\n'
        try:
            resolved(folder, f'code = "."\n[[role]]\nname = "a"\n{program}{key} = {shown}\n')
        except (ConfigError, UsageError) as error:
            assert error.message
