"""What the checks report about a container, judged from facts alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.launcher.checks.container_rules import container_rules
from clusterctl.launcher.checks.surroundings import Check, ContainerFacts, Seen, Verdict
from clusterctl.launcher.containers.contents import Contents, inside, overridden, parse_environment
from clusterctl.launcher.containers.runtimes import ContainerView, Mount
from clusterctl.shared.errors import SlurmError

PYTHON = "/opt/venv/bin/python"
LINKS = {
    PYTHON: "python3",
    "/opt/venv/bin/python3": "/usr/bin/python3.12",
    "/usr/bin/python3.12": "",
    "/opt/venv/lib/python3.12": "",
}
CONTENTS = Contents(unpacked_bytes=10**9, packages={"torch": "2.13.0"}, links=LINKS)
GOOD = ContainerFacts(
    view=ContainerView(image="/i.sqsh"), python=PYTHON, image=Seen("/i.sqsh", True), contents=CONTENTS
)


def problems(facts: ContainerFacts) -> list[Check]:
    return [check for check in container_rules(facts) if check.verdict is not Verdict.OK]


def messages(facts: ContainerFacts) -> list[str]:
    return [check.message for check in problems(facts)]


def test_a_good_image_has_no_problems() -> None:
    assert problems(GOOD) == []


def test_the_version_of_an_interpreter_is_read_through_its_links() -> None:
    assert CONTENTS.minor_of(PYTHON) == "3.12"
    assert Contents(links={**LINKS, "/opt/venv/bin/python3": ""}).minor_of(PYTHON) == "3.12"
    assert Contents(links={PYTHON: ""}).minor_of(PYTHON) is None


@pytest.mark.parametrize("links", [{"/a": "b", "/b": "a"}, {"/a": "a"}, {"/a": "/a/a"}, {"/a": "../../../a/b"}])
def test_resolving_circular_links_terminates(links: dict[str, str]) -> None:
    assert Contents(links=links).resolved("/a/x").startswith("/")


def test_links_are_resolved_relative_to_their_folder() -> None:
    contents = Contents(links={"/bin": "usr/bin", "/usr/bin/sh": "dash", "/etc/x": "../opt/x", "/opt/x": ""})
    assert contents.resolved("/bin/sh") == "/usr/bin/dash"
    assert contents.resolved("/etc/x") == "/opt/x"


def test_a_sif_file_is_not_inspected_and_has_no_problems() -> None:
    sif = replace(GOOD, runtime="apptainer", squashfs=False, contents=None, view=ContainerView(image="/i.sif"))
    assert problems(sif) == []
    assert messages(replace(sif, runtime="pyxis")) == ["not a squashfs: /i.sif"]


def test_missing_apptainer_is_a_warning_if_it_runs_the_image() -> None:
    (missing,) = problems(replace(GOOD, runtime="apptainer", has_apptainer=False))
    message = "apptainer is not on PATH on this machine; the nodes must have it"
    assert (missing.verdict, missing.message) == (Verdict.WARN, message)
    assert "module load apptainer" in missing.hint
    assert problems(replace(GOOD, has_apptainer=False)) == []


def test_paths_mounted_into_the_image_are_not_checked() -> None:
    mounted = replace(
        GOOD, view=ContainerView(image="/i.sqsh", mounts=(Mount("/venv", "/opt"),)), contents=Contents(links={"/a": ""})
    )
    assert problems(mounted) == []
    assert messages(replace(mounted, view=GOOD.view)) == [f"no {PYTHON} in the image"]


def test_a_missing_data_folder_is_no_folder_to_make() -> None:
    """`mkdir -p` would only hide that there is no data."""
    view = ContainerView(image="/i.sqsh", mounts=(Mount("/data", "/data", ("ro",)), Mount("/more", "/more")))
    sources = (Seen("/data", False), Seen("/more", False))
    data, more = problems(replace(GOOD, view=view, sources=sources, data_root="/data"))
    assert (data.message, data.hint) == (
        "no data: /data: no such folder",
        "set data.root to the folder of the data set",
    )
    assert more.hint.startswith("mkdir -p /more")


def test_an_interpreter_that_may_not_be_executed_is_refused() -> None:
    readable = replace(CONTENTS, programs=frozenset({"/bin/sh"}))
    (found,) = problems(replace(GOOD, contents=readable))
    assert (found.verdict, found.message) == (Verdict.FAIL, f"{PYTHON} in the image is not executable")
    assert problems(replace(GOOD, contents=replace(CONTENTS, programs=frozenset({"/usr/bin/python3.12"})))) == []


def test_the_hint_for_an_image_without_the_interpreter_names_an_executable_one() -> None:
    links = {"/etc/python3": "", "/usr/bin/python3": "python3.12", "/usr/bin/python3.12": ""}
    without = replace(GOOD, contents=Contents(links=links))
    assert [check.hint for check in problems(without)] == ["install one, as in containers/"]
    with_one = replace(without, contents=Contents(links=links, programs=frozenset({"/usr/bin/python3.12"})))
    assert [check.hint for check in problems(with_one)] == ["set `python` in the cluster file: /usr/bin/python3"]
    (of_a_role,) = problems(replace(with_one, of_roles=True))  # where that key would be for the tasks on the host
    assert of_a_role.hint == f"where the image is built: mkdir -p /opt/venv/bin && ln -s /usr/bin/python3 {PYTHON}"


def test_packages_may_come_from_the_jobs_pythonpath() -> None:
    bare = replace(GOOD, brings_code=True)
    assert messages(bare) == [f"{PYTHON} in the image has no clusterctl"]
    assert messages(replace(bare, brings_packages=True)) == []


def test_space_to_unpack_is_needed_in_one_place_only() -> None:
    assert problems(replace(GOOD, rooms={"/dev/shm": 10**8, "/tmp": 10**10})) == []
    (complaint,) = problems(replace(GOOD, rooms={"/dev/shm": 10**8, "/tmp": 2 * 10**8}))
    assert complaint.message == "no room to unpack /i.sqsh: 1000 MB into /dev/shm (100 MB free), /tmp (200 MB free)"


def test_without_pyxis_a_gpu_needs_its_drivers_libraries_mounted() -> None:
    (complaint,) = problems(replace(GOOD, runtime="builtin", gpus=4))
    assert (complaint.fatal, "driver's libraries" in complaint.message) == (False, True)
    library = Mount("/usr/lib/libcuda.so.1", "/usr/lib/libcuda.so.1")
    assert problems(replace(GOOD, runtime="builtin", gpus=4, view=replace(GOOD.view, mounts=(library,)))) == []
    assert problems(replace(GOOD, gpus=4)) == []


def test_a_mount_source_that_may_exist_on_nodes_only_is_a_warning() -> None:
    facts = replace(
        GOOD,
        sources=(Seen("/raid/x", False, visible=False), Seen("/data", False)),
        srun_help="--mpi",
    )
    assert [check.fatal for check in problems(facts)] == [True, False, True]
    assert problems(facts)[0] == Check(
        "image",
        Verdict.FAIL,
        "pyxis is not installed: srun --help shows no --container-image",
        'set container_runtime = "builtin" in the cluster file, or ask your administrator for pyxis',
        error=SlurmError,
    )


def test_an_image_for_another_architecture_is_reported_early() -> None:
    arm = replace(GOOD, machine="x86_64", contents=replace(CONTENTS, machine="aarch64"))
    (found,) = problems(arm)
    assert (found.verdict, found.message) == (
        Verdict.WARN,
        "the image is for aarch64, but this machine is x86_64: /i.sqsh",
    )
    assert [found.verdict for found in problems(replace(arm, unpacks_here=True))] == [Verdict.FAIL]
    assert problems(replace(arm, machine="aarch64")) == []
    assert problems(replace(GOOD, machine="x86_64")) == []  # not known


def test_a_space_in_a_mounted_path_is_a_warning_for_older_pyxis() -> None:
    view = ContainerView(image="/i.sqsh", mounts=(Mount("/my data", "/data"),))
    (found,) = problems(replace(GOOD, view=view))
    assert (found.verdict, "before 0.24" in found.message) == (Verdict.WARN, True)
    assert problems(replace(GOOD, view=view, runtime="builtin")) == []


def test_variables_overridden_by_the_image_are_reported_unless_kept() -> None:
    image = {"TOKEN": "image", "PATH": "/image", "LANG": "C", "SAME": "x", "KEPT": "image", "NEW": "y"}
    host = {"TOKEN": "mine", "PATH": "/mine", "LANG": "de", "SAME": "x", "KEPT": "mine"}
    facts = replace(
        GOOD,
        view=ContainerView(image="/i.sqsh", environment=("KEPT",)),
        contents=replace(CONTENTS, environment=image),
        environment=host,
    )
    assert overridden(host, image, ["KEPT"]) == ["TOKEN"]
    (complaint,) = problems(facts)
    assert not complaint.fatal
    assert "overrides variables of your environment: TOKEN" in complaint.message
    assert inside(host, image, ["KEPT"]) == {**image, "KEPT": "mine"}


def test_an_environment_file_has_one_variable_a_line() -> None:
    assert parse_environment("# a=b\nA=1=2\n\nbroken\n B = c\n=x\n".splitlines()) == {"A": "1=2", "B": " c"}
