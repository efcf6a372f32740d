"""What is told of a container before it is submitted: the rules that no file on this machine is needed for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.checks.container import Complaint, Facts, Place, examine
from clusterctl.containers.contents import Contents
from clusterctl.containers.image_environment import inside, overridden, parse_environment
from clusterctl.containers.mounts import Mount
from clusterctl.containers.view import View

PYTHON = "/opt/venv/bin/python"
LINKS = {
    PYTHON: "python3",
    "/opt/venv/bin/python3": "/usr/bin/python3.12",
    "/usr/bin/python3.12": "",
    "/opt/venv/lib/python3.12": "",
}
CONTENTS = Contents(unpacked_bytes=10**9, packages={"submitit": "1.5.4"}, links=LINKS)
GOOD = Facts(view=View(image="/i.sqsh"), python=PYTHON, image=Place(exists=True), contents=CONTENTS)


def told(facts: Facts) -> list[str]:
    return [complaint.message for complaint in examine(facts)]


def test_of_a_good_image_nothing_is_told() -> None:
    assert examine(GOOD) == []


def test_the_version_of_an_interpreter_is_read_through_its_links() -> None:
    assert CONTENTS.minor_of(PYTHON) == "3.12"
    assert Contents(links={**LINKS, "/opt/venv/bin/python3": ""}).minor_of(PYTHON) == "3.12"
    assert Contents(links={PYTHON: ""}).minor_of(PYTHON) is None


@pytest.mark.parametrize("links", [{"/a": "b", "/b": "a"}, {"/a": "a"}, {"/a": "/a/a"}, {"/a": "../../../a/b"}])
def test_links_that_lead_in_circles_lead_nowhere(links: dict[str, str]) -> None:
    assert Contents(links=links).resolved("/a/x").startswith("/")


def test_links_lead_from_where_they_lie() -> None:
    contents = Contents(links={"/bin": "usr/bin", "/usr/bin/sh": "dash", "/etc/x": "../opt/x", "/opt/x": ""})
    assert contents.resolved("/bin/sh") == "/usr/bin/dash"
    assert contents.resolved("/etc/x") == "/opt/x"


def test_what_is_mounted_into_the_image_is_not_judged() -> None:
    mounted = replace(
        GOOD, view=View(image="/i.sqsh", mounts=(Mount("/venv", "/opt"),)), contents=Contents(links={"/a": ""})
    )
    assert examine(mounted) == []
    assert told(replace(mounted, view=GOOD.view)) == [f"no {PYTHON} in the image"]


def test_packages_may_come_from_a_pythonpath_of_the_jobs_own() -> None:
    bare = replace(GOOD, contents=replace(CONTENTS, packages={}))
    assert told(bare) == [f"{PYTHON} in the image has no submitit"]
    assert told(replace(bare, brings_packages=True)) == []
    assert told(replace(bare, brings_code=True)) == [f"{PYTHON} in the image has no submitit and no clusterctl"]


def test_room_is_needed_in_one_place_alone() -> None:
    assert examine(replace(GOOD, rooms={"/dev/shm": 10**8, "/tmp": 10**10})) == []
    (complaint,) = examine(replace(GOOD, rooms={"/dev/shm": 10**8, "/tmp": 2 * 10**8}))
    assert complaint.message == "no room to unpack /i.sqsh: 1000 MB into /dev/shm (100 MB free), /tmp (200 MB free)"


def test_without_pyxis_a_gpu_needs_its_drivers_libraries_mounted() -> None:
    (complaint,) = examine(replace(GOOD, builtin=True, gpus=4))
    assert (complaint.fatal, "driver's libraries" in complaint.message) == (False, True)
    library = Mount("/usr/lib/libcuda.so.1", "/usr/lib/libcuda.so.1")
    assert examine(replace(GOOD, builtin=True, gpus=4, view=replace(GOOD.view, mounts=(library,)))) == []
    assert examine(replace(GOOD, gpus=4)) == []


def test_what_stops_a_run_is_told_before_what_may_not() -> None:
    facts = replace(
        GOOD,
        sources={"/raid/x": Place(exists=False, foreign=True), "/data": Place(exists=False)},
        srun_help="--mpi",
    )
    assert [complaint.fatal for complaint in examine(facts)] == [True, True, False]
    assert examine(facts)[0] == Complaint(
        "this Slurm has no pyxis: srun --help shows no --container-image",
        'set container_runtime = "builtin" in the cluster file, or ask your administrator for pyxis',
        of_slurm=True,
    )


def test_variables_that_the_image_changes_are_told_unless_the_run_keeps_them() -> None:
    image = {"TOKEN": "image", "PATH": "/image", "LANG": "C", "SAME": "x", "KEPT": "image", "NEW": "y"}
    host = {"TOKEN": "mine", "PATH": "/mine", "LANG": "de", "SAME": "x", "KEPT": "mine"}
    facts = replace(
        GOOD,
        view=View(image="/i.sqsh", environment=("KEPT",)),
        contents=replace(CONTENTS, environment=image),
        environment=host,
    )
    assert overridden(host, image, ["KEPT"]) == ["TOKEN"]
    (complaint,) = examine(facts)
    assert not complaint.fatal
    assert "sets TOKEN otherwise" in complaint.message
    assert inside(host, image, ["KEPT"]) == {**image, "KEPT": "mine"}


def test_an_environment_file_has_one_variable_a_line() -> None:
    assert parse_environment("# a=b\nA=1=2\n\nbroken\n B = c\n=x\n") == {"A": "1=2", "B": " c"}
