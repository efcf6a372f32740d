"""Mistakes with images and mounts: all are reported before anything is submitted."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from support.mistake import CONFIG, OTHER, SLURM, Desk, Mistake, rows

from clusterctl.launcher.containers import unpacked

PYXIS = 'echo "      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH"'
PACKAGES = "opt/venv/lib/python3.11/site-packages"
GOOD = ("opt/venv/bin/python3.11", f"{PACKAGES}/torch-2.13.0.dist-info/METADATA")


def job(table: str, more: str = "") -> str:
    return f'workload = "command"\nargv = ["true"]\n{more}[container]\n{table}\n'


def with_image(*files: str) -> Callable[[Desk], None]:
    """An image in the project's folder with these files in it."""

    def make(desk: Desk) -> None:
        root = desk.folder / "root"
        for name in files or GOOD:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("")
            (root / name).chmod(0o755 if "bin" in Path(name).parts else 0o644)
        for python in root.glob("opt/venv/bin/python3.*"):
            python.with_name("python").symlink_to(python.name)
        image = desk.project / "i.sqsh"
        subprocess.run(["mksquashfs", root, image, "-quiet", "-no-progress"], check=True, capture_output=True)

    return make


def with_slurm(image: bool, cluster: str = "", **answers: str) -> Callable[[Desk], None]:
    def make(desk: Desk) -> None:
        desk.use_slurm(cluster, **{"srun": PYXIS, **answers})
        if image:
            with_image()(desk)

    return make


def image(
    what: str, name: str, expected: str, hint: str, prepare: Callable[[Desk], object] = lambda desk: None
) -> Mistake:
    return Mistake(what=what, job=job(f'image = "{name}"'), code=CONFIG, expected=expected, hint=hint, prepare=prepare)


def mount(what: str, text: str, expected: str, hint: str) -> Mistake:
    table = f'image = "./i.sqsh"\nmounts = ["{text}"]'
    return Mistake(what=what, job=job(table), code=CONFIG, expected=expected, hint=hint, prepare=with_image())


@rows(
    image("it does not exist", "./none.sqsh", "no such image: ", "clusterctl image"),
    image(
        "it is a dangling link", "./i.sqsh", "no such image: ", "clusterctl image",
        lambda desk: (desk.project / "i.sqsh").symlink_to("nowhere"),
    ),
    image(
        "it is an archive", "./i.sqsh", "not a squashfs: ", "clusterctl image import",
        lambda desk: desk.write("i.sqsh", b"\x1f\x8b\x08 a tar.gz"),
    ),
    image("it is empty", "./i.sqsh", "not a squashfs: ", "image import", lambda desk: desk.write("i.sqsh", "")),
    image("it is cut off", "./i.sqsh", "cannot read the image: ", "verify", lambda desk: desk.write("i.sqsh", b"hsqs")),
    image(
        "it is a folder", "./i.sqsh", "not a regular file", "verify", lambda desk: (desk.project / "i.sqsh").mkdir()
    ),
    image("its path is relative", "i.sqsh", "relative path: i.sqsh", "write ./i.sqsh"),
    image("it is neither file nor reference", "Python:3", "neither a file nor an image reference", "python:3.11-slim"),
    image("it uses docker's syntax", "nvcr.io/nvidia/pyg:24", "must be followed by '#'", "nvcr.io#nvidia/pyg:24"),
    image("it uses enroot's syntax", "docker://python:3.11", "neither a file nor", "python:3.11-slim"),
    image("it is a flag", "--container-name=x", "neither a file nor", "image.sqsh"),
    image("it contains a space", "a b", "container.image: must be one word", "config keys"),
)  # fmt: skip
def test_an_image_that_cannot_be_run(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)


@rows(
    mount("it contains a comma", "/a,b:/c", "',' in a mounted path", "cannot escape"),
    mount("it contains a plus", "/a+b:/c", "'+' in a mounted path", "cannot escape"),
    mount("it contains a percent sign", "/a%t:/c", "'%' in a mounted path", "cannot escape"),
    mount("it has too many colons", "/a:/b:ro:/c", "more than SRC:DST:FLAGS", "':'"),
    mount("its source is relative", "data:/c", "not an absolute path: 'data'", "/SRC:/DST"),
    mount("its target is relative", "/tmp:c", "not an absolute path: 'c'", "/SRC:/DST"),
    mount("it is empty", "", "container.mounts", ""),
    mount("its flag has a typo", "/tmp:/c:r0", "unknown mount flag: 'r0'", "ro, "),
    mount("it hides the image", "/tmp:/", "cannot mount over the image's root", "/SRC:/DST"),
    mount("its source is missing", "/tmp/no/such/folder:/c", "no such folder to mount: /tmp/no/such/folder", "mkdir"),
    mount("two share a target", '/tmp:/c", "/usr:/c', "same target: /tmp and /usr", "in container.mounts of the job"),
)  # fmt: skip
def test_an_invalid_mount(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)


@rows(
    Mistake(
        what="the data folder cannot be mounted",
        job=job('image = "./i.sqsh"', '[data]\nroot = "/tmp/a,b"\n'),
        prepare=with_image(),
        code=CONFIG,
        expected="',' in a mounted path: /tmp/a,b",
        hint="cannot escape",
    ),
    Mistake(
        what="the runs folder cannot be mounted",
        job=job('image = "./i.sqsh"'),
        environment={"CLUSTERCTL_RUNS": "/tmp/a:b"},
        prepare=with_image(),
        code=CONFIG,
        expected="':' in a mounted path: /tmp/a:b",
        hint="cannot escape",
    ),
    Mistake(
        what="the working directory is relative",
        job=job('image = "./i.sqsh"\nworkdir = "src"'),
        prepare=with_image(),
        code=CONFIG,
        expected="container.workdir: not an absolute path: src",
        hint="config keys",
    ),
    Mistake(
        what="the code should come from an image, but there is none",
        job=job('code = "image"'),
        code=CONFIG,
        expected='container.code: "image" needs an image',
        hint="config keys",
    ),
    Mistake(
        what="--code has a typo",
        typed="submit ./job.toml --code imag",
        job=job('image = "./i.sqsh"'),
        prepare=with_image(),
        code=CONFIG,
        expected="--set: container.code: must be one of mounted, image",
        hint="config keys",
    ),
    Mistake(
        what="a key has a typo",
        job=job('imgae = "./i.sqsh"'),
        code=CONFIG,
        expected="container.imgae: unknown key (did you mean image?)",
        hint="config keys",
    ),
    Mistake(
        what="mounts is not a list",
        job=job('image = "./i.sqsh"\nmounts = "/tmp"'),
        prepare=with_image(),
        code=CONFIG,
        expected="container.mounts: expected a list",
        hint="config keys",
    ),
    Mistake(
        what="several things are wrong",
        job=job('image = "./none.sqsh"\nmounts = ["/tmp/no/such:/a", "/tmp/nor/such:/b"]'),
        code=CONFIG,
        expected="3 problems would make the run fail",
        hint="clusterctl image",
    ),
)
def test_an_invalid_container_table(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)


@rows(
    Mistake(
        what="its Python is too old",
        job=job('image = "./i.sqsh"'),
        prepare=with_image("opt/venv/bin/python3.9", "opt/venv/lib/python3.9/site-packages/"),
        code=CONFIG,
        expected="/opt/venv/bin/python in the image is Python 3.9",
        hint="3.11 or later",
    ),
    Mistake(
        what="it has no Python",
        job=job('image = "./i.sqsh"'),
        prepare=with_image("bin/sh", "etc/python3/debian_config"),
        code=CONFIG,
        expected="no /opt/venv/bin/python in the image",
        hint="install one",
    ),
    Mistake(
        what="its Python is elsewhere",
        job=job('image = "./i.sqsh"'),
        prepare=with_image("usr/bin/python3"),
        code=CONFIG,
        expected="no /opt/venv/bin/python in the image",
        hint="set `python` in the cluster file: /usr/bin/python3",
    ),
    Mistake(
        what="it lacks the code that it should contain",
        typed="submit ./job.toml --code image",
        job=job('image = "./i.sqsh"'),
        prepare=with_image(),
        code=CONFIG,
        expected="in the image has no clusterctl",
        hint="--set container.code=mounted",
    ),
    Mistake(
        what="there is no room to unpack it",
        job=job('image = "./i.sqsh"'),
        prepare=lambda desk: (with_image()(desk), desk.patch.setattr(unpacked, "room", lambda store: 0)),
        code=CONFIG,
        expected="no room to unpack ",
        hint="set CLUSTERCTL_UNPACK",
    ),
    Mistake(
        what="nothing on this machine can pull it",
        job=job('image = "python:3.11-slim"'),
        prepare=lambda desk: desk.set(PATH="/nowhere", XDG_DATA_HOME=str(desk.folder / "data")),
        code=OTHER,
        expected="no program here can build or pull an image",
        hint="or install enroot",
    ),
    Mistake(
        what="nothing on this machine can unpack it",
        job=job('image = "./i.sqsh"'),
        prepare=lambda desk: (with_image()(desk), desk.set(PATH="/nowhere")),
        code=CONFIG,
        expected="unsquashfs is not on PATH to unpack",
        hint="apt-get install squashfs-tools",
    ),
)
def test_an_image_that_a_run_cannot_use(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)


@rows(
    Mistake(
        what="Slurm has no pyxis",
        job=job('image = "./i.sqsh"'),
        prepare=with_slurm(image=True, srun="echo Usage: srun"),
        code=SLURM,
        expected="pyxis is not installed",
        hint='container_runtime = "builtin"',
    ),
    Mistake(
        what="srun is broken",
        job=job('image = "./i.sqsh"'),
        prepare=with_slurm(image=True, srun="echo no such library >&2; exit 127"),
        code=SLURM,
        expected="srun: no such library",
        hint="srun --help",
    ),
    Mistake(
        what="the file is not on the shared file system",
        job=job('image = "/tmp/no/such.sqsh"'),
        prepare=with_slurm(image=False),
        code=CONFIG,
        expected="no such image: /tmp/no/such.sqsh",
        hint="clusterctl image",
    ),
    Mistake(
        what="a mount in the cluster file does not exist",
        job=job('image = "./i.sqsh"'),
        prepare=with_slurm(image=True, cluster='[container]\nmounts = ["/tmp/no/such"]\n'),
        code=CONFIG,
        expected="no such folder to mount: /tmp/no/such",
        hint="mkdir",
    ),
    Mistake(
        what="the container runtime is unknown",
        job=job('image = "./i.sqsh"'),
        prepare=with_slurm(image=True, cluster='container_runtime = "docker"\n'),
        code=CONFIG,
        expected="container_runtime: must be one of pyxis, builtin, apptainer",
        hint="config keys",
    ),
    Mistake(
        what="a mount has a flag that Apptainer lacks",
        job=job('image = "./i.sqsh"\nmounts = ["/usr:/usr:ro+nosuid"]'),
        prepare=with_slurm(image=True, cluster='container_runtime = "apptainer"\n'),
        code=CONFIG,
        expected="Apptainer supports only ro and rw: nosuid",
        hint="leave it out",
    ),
    Mistake(
        what="a URI for Apptainer contains a semicolon",
        job=job('image = "docker://a;id"'),
        prepare=with_slurm(image=True, cluster='container_runtime = "apptainer"\n'),
        code=CONFIG,
        expected="container.image: neither a file nor an image reference: docker://a;id",
        hint="write",
    ),
    Mistake(
        what="the cluster file asks for pyxis on the emulator",
        job=job('image = "./i.sqsh"'),
        files={"cluster/mine.toml": 'kind = "emulator"\ncontainer_runtime = "pyxis"\n'},
        environment={"CLUSTERCTL_CLUSTER": "mine"},
        prepare=with_image(),
        code=CONFIG,
        expected="the emulator has no pyxis",
        hint="config keys",
    ),
)
def test_a_cluster_that_cannot_run_the_image(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)
    assert desk.asked("sbatch") == 0


def test_paths_that_only_the_nodes_may_have_are_warnings(desk: Desk) -> None:
    desk.use_slurm(srun=PYXIS, sbatch="echo Submitted batch job 7")
    desk.write("job.toml", job('image = "/raid-of-the-nodes/images/i.sqsh"\nmounts = ["/raid-of-the-nodes/data"]'))
    code, _, err = desk.type("submit ./job.toml")
    assert (code, len(desk.run_directories())) == (0, 1), err
    assert "warning: not on this machine: /raid-of-the-nodes/images/i.sqsh" in err
    assert "warning: not on this machine: /raid-of-the-nodes/data" in err


def test_a_good_image_is_submitted_without_warnings(desk: Desk) -> None:
    desk.use_slurm(srun=PYXIS, sbatch="echo Submitted batch job 7")
    with_image()(desk)
    desk.write("job.toml", job('image = "./i.sqsh"\nmounts = ["/tmp:/x:ro"]'))
    code, _, err = desk.type("submit ./job.toml")
    assert (code, err) == (0, "")
    assert desk.asked("srun") == 1


def test_variables_that_the_image_overrides_are_reported(desk: Desk) -> None:
    desk.use_slurm(srun=PYXIS, sbatch="echo Submitted batch job 7")
    with_image()(desk)
    (desk.folder / "root" / "etc").mkdir()
    (desk.folder / "root" / "etc" / "environment").write_text("COLOUR=image\nSHAPE=image\nPATH=/image\n")
    (desk.project / "i.sqsh").unlink()
    packing = ["mksquashfs", desk.folder / "root", desk.project / "i.sqsh", "-quiet", "-no-progress"]
    subprocess.run(packing, check=True, capture_output=True)
    desk.set(COLOUR="mine", SHAPE="mine")
    desk.write("job.toml", job('image = "./i.sqsh"', '[env]\nSHAPE = "job"\n'))
    code, _, err = desk.type("submit ./job.toml")
    assert code == 0
    assert "warning: the image overrides variables of your environment: COLOUR" in err
