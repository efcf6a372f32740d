"""What a task inside an image is to see, as pyxis's flags say it: one grammar for srun and for our own runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.containers.mounts import Mount
from clusterctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

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


@dataclass(frozen=True, kw_only=True)
class View:
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
            "--container-writable" if self.writable else "--container-readonly",
            "--container-mount-home" if self.mount_home else "--no-container-mount-home",
            "--container-remap-root" if self.remap_root else "--no-container-remap-root",
            "--container-entrypoint" if self.entrypoint else "--no-container-entrypoint",
            *([f"--container-env={','.join(self.environment)}"] if self.environment else []),
        ]

    @classmethod
    def parse(cls, flags: Iterable[str]) -> View:
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
