"""What a task inside an image is to see, as pyxis's flags say it: one grammar for srun and for our own runner.

All of it is explicit: a site's enroot.conf must not change a run. The container is unnamed: a named one outlives its
job and leaves an unpacked image on every node. Flags as in pyxis 0.24's `srun --help`.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.spec import Container

IMAGE_PYTHON = "/opt/venv/bin/python"
# mount(8)'s, of which enroot takes any; `ro` is the one that is used.
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
    """As enroot writes it: SRC:DST[:flag+flag]. The separators cannot be escaped, so paths must not hold them."""

    source: str
    target: str
    flags: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Mount:
        """Parse `text`; SRC alone means the same path inside. Raises ConfigError for anything pyxis would misread."""
        source, *rest = text.split(":")
        if len(rest) > 2:
            raise ConfigError(f"container.mounts: more than SRC:DST:FLAGS: {text}", "a ':' in a path cannot be mounted")
        target = rest[0] if rest and rest[0] else source
        flags = tuple(rest[1].split("+")) if len(rest) == 2 else ()
        mount = cls(source, target, flags)
        for path in (source, target):
            if not path.startswith("/"):
                raise ConfigError(f"container.mounts: not an absolute path: {path!r} in {text}", "write /SRC:/DST")
        mount.check()
        if not target.strip("/"):
            message = f"container.mounts: nothing can be mounted over the image itself: {text}"
            raise ConfigError(message, "write /SRC:/DST")
        for flag in flags:
            if flag not in FLAGS and not flag.startswith("x-"):
                close = difflib.get_close_matches(flag, FLAGS, n=1)
                known = f"did you mean {close[0]}?" if close else f"flags: {', '.join(sorted(FLAGS))}"
                raise ConfigError(f"container.mounts: no flag of a mount: {flag!r} in {text}", known)
        return mount

    def check(self) -> None:
        """Raise ConfigError for a path that the grammar of mounts cannot carry."""
        for path in (self.source, self.target):
            if found := _UNCARRIED.search(path):
                raise ConfigError(
                    f"container.mounts: {found[0]!r} in a mounted path: {path}",
                    "pyxis cannot escape ',', ':' and '+'; mount a folder above it, or a link without them",
                )

    def __str__(self) -> str:
        return ":".join([self.source, self.target, *(["+".join(self.flags)] if self.flags else [])])


@dataclass(frozen=True, kw_only=True)
class ContainerView:
    """`environment` names the variables whose values on the host beat the image's own."""

    image: str
    mounts: tuple[Mount, ...] = ()
    workdir: str | None = None  # default: the image's own
    writable: bool = False
    mount_home: bool = False
    remap_root: bool = False
    entrypoint: bool = False
    environment: tuple[str, ...] = ()

    def flags(self) -> list[str]:
        """As srun's options; every switch is there, so that no setting of a site decides."""
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
                raise UsageError(f"no flag of a container: {flag}")
        if "container-image" not in values:
            raise UsageError("no image to run in", "--container-image=/path/to/image.sqsh")
        return cls(
            image=values["container-image"],
            mounts=tuple(map(Mount.parse, filter(None, values.get("container-mounts", "").split(",")))),
            workdir=values.get("container-workdir"),
            environment=tuple(filter(None, values.get("container-env", "").split(","))),
            **switches,
        )


def removing(names: str) -> tuple[str, ...]:
    """What each node is to run so that no container of this job is left whose name ends as `names` says, a pattern.

    pyxis would refuse to make such a container anew, or take it for a whole one. It is called pyxis_<job>.<step>; one
    with a name, X, is pyxis_X or pyxis_<job>_X, as the site has it.
    """
    return ("sh", "-c", _REMOVE, names)


def check_image(image: str) -> str:
    """`image` if it is an absolute path or a reference. Raises ConfigError otherwise.

    A relative path would be looked up in a registry, hours later and on the node.
    """
    if image.startswith("/"):
        return image
    if image.endswith(".sqsh"):
        raise ConfigError(f"container.image: a relative path: {image}", f"write ./{image}")
    first, slash, rest = image.removeprefix("docker://").partition("/")
    if slash and "#" not in first and re.search(r"[.:]|^localhost$", first):
        message = f"container.image: a registry ends with '#', not with '/': {image}"
        raise ConfigError(message, f'write "{first}#{rest}"')
    if not _REFERENCE.fullmatch(image):
        raise ConfigError(
            f"container.image: neither a file nor an image reference: {image}",
            'write "/path/to/image.sqsh", "nvcr.io#nvidia/pyg:24.07-py3" or "python:3.11-slim"',
        )
    return image


def make_view(
    image: str, container: Container, mounts: Iterable[Mount], environment: Iterable[str], workdir: str | None
) -> ContainerView:
    """What the tasks of a job see in `image`.

    `mounts` are the run's own. `environment` names every variable that the run sets: an image's own value would win
    over the host's otherwise. `image` has been checked. Raises ConfigError for what the grammar of the flags cannot
    carry.
    """
    every = [*mounts, *(Mount.parse(text) for text in container.mounts)]
    for mount in every:
        mount.check()
    return ContainerView(
        image=image,
        # A folder comes before what is mounted below it, which it would hide.
        mounts=tuple(sorted(every, key=lambda mount: mount.target.count("/"))),
        workdir=container.workdir or workdir,
        writable=container.writable,
        mount_home=container.mount_home,
        remap_root=container.remap_root,
        entrypoint=container.entrypoint,
        environment=tuple(sorted(set(environment))),
    )
