"""What a task sees inside its image, written as pyxis flags: one grammar for srun and for our own runner.

For Apptainer the same view becomes arguments of `apptainer exec`.

Every setting is explicit: a site's enroot.conf must not change a run. The container is unnamed: a named one outlives
its job and leaves an unpacked image on every node. Flags as in pyxis 0.24's `srun --help`.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.shared.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.shared.spec import Container


IMAGE_PYTHON = "/opt/venv/bin/python"
IMAGE_MARK = "/clusterctl-image"  # something mounted there shows a task that it is in its image
# enroot accepts any flag of mount(8); clusterctl itself uses only `ro`.
FLAGS = frozenset(
    {"ro", "rw", "bind", "rbind", "private", "rprivate", "slave", "rslave", "shared", "rshared"}
    | {"nosuid", "suid", "nodev", "dev", "noexec", "exec", "noatime", "relatime", "nofail"}
)
_UNCARRIED = re.compile(r"[,:+\n\\%]")
_SWITCHES = {
    "container-writable": ("writable", True),
    "container-readonly": ("writable", False),
    "container-mount-home": ("mount_home", True),
    "no-container-mount-home": ("mount_home", False),
    "container-remap-root": ("remap_root", True),
    "no-container-remap-root": ("remap_root", False),
    "container-entrypoint": ("entrypoint", True),
    "no-container-entrypoint": ("entrypoint", False),
}
_REMOVE = """command -v enroot >/dev/null || exit 0
for name in $(enroot list | grep -Ex "pyxis_($SLURM_JOB_ID)?$0"); do enroot remove --force "$name" || exit; done"""
# [USER@][REGISTRY#]NAME[:TAG|@DIGEST], as enroot import(1) documents docker:// references.
_REFERENCE = re.compile(
    r"(?:[\w.-]+@)?(?:[\w.-]+(?::\d+)?#)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[\w][\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)


@dataclass(frozen=True)
class Mount:
    """A mount in enroot's notation, SRC:DST[:flag+flag]. Separators cannot be escaped: paths must not contain them."""

    source: str
    target: str
    flags: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Mount:
        """Parse `text`; SRC alone mounts at the same path inside. Raises ConfigError for what pyxis would misread."""
        source, *rest = text.split(":")
        if len(rest) > 2:
            raise ConfigError(f"container.mounts: more than SRC:DST:FLAGS: {text}", "paths must not contain ':'")
        target = rest[0] if rest and rest[0] else source
        flags = tuple(rest[1].split("+")) if len(rest) == 2 else ()
        mount = cls(source, target, flags)
        for path in (source, target):
            if not path.startswith("/"):
                raise ConfigError(f"container.mounts: not an absolute path: {path!r} in {text}", "write /SRC:/DST")
        mount.check()
        if not target.strip("/"):
            message = f"container.mounts: cannot mount over the image's root: {text}"
            raise ConfigError(message, "write /SRC:/DST")
        for flag in flags:
            if flag not in FLAGS and not flag.startswith("x-"):
                close = difflib.get_close_matches(flag, FLAGS, n=1)
                known = f"did you mean {close[0]}?" if close else f"flags: {', '.join(sorted(FLAGS))}"
                raise ConfigError(f"container.mounts: unknown mount flag: {flag!r} in {text}", known)
        return mount

    def check(self) -> None:
        """Raise ConfigError for a path that cannot be written as a mount."""
        for path in (self.source, self.target):
            if found := _UNCARRIED.search(path):
                raise ConfigError(
                    f"container.mounts: {found[0]!r} in a mounted path: {path}",
                    "pyxis cannot escape ',', ':' and '+'; mount a parent folder, or a link without them",
                )

    def __str__(self) -> str:
        return ":".join([self.source, self.target, *(["+".join(self.flags)] if self.flags else [])])


@dataclass(frozen=True, kw_only=True)
class ContainerView:
    """`environment` names the variables whose host values override the image's."""

    image: str
    mounts: tuple[Mount, ...] = ()
    workdir: str | None = None  # default: the image's own
    writable: bool = False
    mount_home: bool = False
    remap_root: bool = False
    entrypoint: bool = False
    environment: tuple[str, ...] = ()

    def flags(self) -> list[str]:
        """As srun's options. Every switch is given, so that no site setting applies."""
        mounts = ",".join(dict.fromkeys(map(str, self.mounts)))
        return [
            f"--container-image={self.image}",
            *([f"--container-mounts={mounts}"] if mounts else []),
            *([f"--container-workdir={self.workdir}"] if self.workdir else []),
            *(f"--{name}" for name, (field, value) in _SWITCHES.items() if getattr(self, field) is value),
            *([f"--container-env={','.join(self.environment)}"] if self.environment else []),
        ]

    @classmethod
    def parse(cls, flags: Iterable[str]) -> ContainerView:
        """The view that `flags` describe. Raises UsageError for a flag that `flags()` does not write."""
        values: dict[str, str] = {}
        switches: dict[str, bool] = {}
        for flag in flags:
            name, equals, value = flag.removeprefix("--").partition("=")
            if equals and name in {"container-image", "container-mounts", "container-workdir", "container-env"}:
                values[name] = value
            elif not equals and name in _SWITCHES:
                field, switch = _SWITCHES[name]
                switches[field] = switch
            else:
                raise UsageError(f"unknown container flag: {flag}")
        if "container-image" not in values:
            raise UsageError("no container image given", "--container-image=/path/to/image.sqsh")
        return cls(
            image=values["container-image"],
            mounts=tuple(map(Mount.parse, filter(None, values.get("container-mounts", "").split(",")))),
            workdir=values.get("container-workdir"),
            environment=tuple(filter(None, values.get("container-env", "").split(","))),
            **switches,
        )


def removing(names: str) -> tuple[str, ...]:
    """A command for each node that removes this job's containers whose names end with the pattern `names`.

    pyxis would refuse to create such a container again, or reuse a half-made one. It is called pyxis_<job>.<step>; one
    named X is pyxis_X or pyxis_<job>_X, depending on the site.
    """
    return ("sh", "-c", _REMOVE, names)


def check_image(image: str, key: str = "container.image") -> str:
    """`image`, set by `key`, if it is an absolute path or a reference. Raises ConfigError otherwise.

    A relative path would be looked up in a registry, hours later and on the node.
    """
    if image.startswith("/"):
        return image
    if image.endswith(".sqsh"):
        raise ConfigError(f"{key}: relative path: {image}", f"write ./{image}")
    first, slash, rest = image.removeprefix("docker://").partition("/")
    if slash and "#" not in first and re.search(r"[.:]|^localhost$", first):
        message = f"{key}: a registry must be followed by '#', not '/': {image}"
        raise ConfigError(message, f'write "{first}#{rest}"')
    if not _REFERENCE.fullmatch(image):
        raise ConfigError(
            f"{key}: neither a file nor an image reference: {image}",
            'write "/path/to/image.sqsh", "nvcr.io#nvidia/pyg:24.07-py3" or "python:3.11-slim"',
        )
    return image


def make_view(
    image: str, container: Container, mounts: Iterable[Mount], environment: Iterable[str], workdir: str | None
) -> ContainerView:
    """What a job's tasks see in `image`, which has been checked.

    `mounts` are those that the run itself needs. `environment` names every variable that the run sets: the image's
    value would override it otherwise. Raises ConfigError for a path or value that the flags cannot express.
    """
    every = [*mounts, *(Mount.parse(text) for text in container.mounts)]
    for mount in every:
        mount.check()
    return ContainerView(
        image=image,
        # Parents come first: mounting one later would hide the mounts below it.
        mounts=tuple(sorted(every, key=lambda mount: mount.target.count("/"))),
        workdir=container.workdir or workdir,
        writable=container.writable,
        mount_home=container.mount_home,
        remap_root=container.remap_root,
        entrypoint=container.entrypoint,
        environment=tuple(sorted(set(environment))),
    )


# With pyxis a step has one image. Where tasks of one step need several, each becomes the srun of a step in its image.

# The step's task gets the variables that Slurm has set for this one, such as its rank. Other users can see arguments:
# what may be secret stays in the environment.
_OWN_STEP = r"""
job=$SLURM_JOB_ID places=() count=$1
for name in ${!SLURM_@}; do
  case $name in
    SLURM_CONF | *JWT* | *TOKEN* | *SECRET* | *PASSW* | *CREDENTIAL* | *KEY*) ;;
    *) places+=("$name=${!name}") && unset "$name" ;;
  esac
done
exec srun --jobid="$job" --nodelist="$SLURMD_NODENAME" --nodes=1 --ntasks=1 --mpi=none --input=none --unbuffered \
  --quiet "${@:2:count}" sh -c "$0" %s "${places[@]}" -- "${@:count + 2}"
"""
_IN_STEP = r"""
[ -e "$0" ] || {
  echo "clusterctl[launch]: not in its image: pyxis is not active on node $SLURMD_NODENAME" >&2; exit 66; }
while [ "$1" != -- ]; do export "$1"; shift; done
shift; trap "" USR2; env --block-signal=USR2 true 2>/dev/null && set -- env --block-signal=USR2 "$@"; exec "$@"
"""


def step_runner(flags: Sequence[str]) -> tuple[str, ...]:
    """The words to put before a task's command that starts it as a step of its own with these flags of srun."""
    return ("bash", "-c", _OWN_STEP.strip() % IMAGE_MARK, _IN_STEP.strip(), str(len(flags)), *flags)


# Running images with Apptainer: a task's container view as arguments of `apptainer exec`.


# `$0` holds the names of the variables that the run sets. Their values must not show up in a process's arguments.
_HAND_ON = 'for n in $0; do eval "[ -z \\"\\${$n+x}\\" ] || export APPTAINERENV_$n=\\"\\$$n\\""; done; exec "$@"'
_ADDRESS = re.compile(r"(?:docker|oras|library)://[\w./:@-]+", re.ASCII)


def is_address(image: str) -> bool:
    """Whether Apptainer itself has to fetch the image, on each node."""
    return _ADDRESS.fullmatch(image) is not None


def runner(view: ContainerView, *, gpus: bool) -> tuple[str, ...]:
    """The words to put before a task's command. Raises ConfigError for a mount that Apptainer does not support."""
    switches = {
        "--nv": gpus,
        "--no-home": not view.mount_home,
        "--writable-tmpfs": view.writable,  # changes are discarded at the end, as pyxis does
        "--fakeroot": view.remap_root,
    }
    binds = []
    for mount in view.mounts:
        if others := set(mount.flags) - {"ro", "rw"}:
            message = f"container.mounts: Apptainer supports only ro and rw: {', '.join(sorted(others))} in {mount}"
            raise ConfigError(message, "leave it out on this cluster")
        binds.append("--bind=" + ":".join([mount.source, mount.target, *mount.flags[:1]]))
    return (
        *("sh", "-c", _HAND_ON, " ".join(view.environment)),
        *("apptainer", "run" if view.entrypoint else "exec"),
        "--no-eval",  # the shell that starts the command would replace a `$` in a value
        "--no-mount=cwd",
        *(switch for switch, wanted in switches.items() if wanted),
        *binds,
        *([f"--pwd={view.workdir}"] if view.workdir else []),
        view.image,
    )
