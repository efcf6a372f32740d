"""The data that a command sends to another machine: a job file, other files, the job's code, and its secrets."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.config import cache_folder, resolve, shipped_folder
from clusterctl.config.secrets import Secrets
from clusterctl.config.sent import SentFile
from clusterctl.config.source import read_toml
from clusterctl.config.stages import HasStages, stages_of
from clusterctl.containers.listener import SILENT
from clusterctl.errors import ConfigError, reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.config import Resolved
    from clusterctl.containers.listener import ProgressListener
    from clusterctl.launch.sent_code import LocalProject
    from clusterctl.spec import Cluster

_PIECE = 2**18


@dataclass
class Cargo:
    """The data sent with a command: a job file, other files by name, the job's code."""

    job: SentFile | None = None
    others: list[SentFile] = field(default_factory=list)
    uploads: list[Path] = field(default_factory=list)
    projects: list[LocalProject] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    secrets: Secrets = field(default_factory=Secrets)

    def answer(self, question: dict[str, Any]) -> Iterator[bytes]:
        """Answer the other machine's questions, but only about this data: the machine is not trusted."""
        if "project" in question:
            found = (project for project in self.projects if str(project.path) == question["project"])
            for project in found:
                yield from project.answer(question)
        elif question.get("upload") in [*map(str, self.uploads)]:
            with Path(question["upload"]).open("rb") as file:
                while piece := file.read(_PIECE):
                    yield piece
        elif (name := str(question.get("variable"))) in self.secrets:
            yield os.environ.get(name, "").encode(errors="surrogateescape")


def load_cargo(
    cluster: Cluster,
    job: str | None,
    *,
    stage: str | None = None,
    program: Sequence[str] = (),
    overrides: Sequence[str] = (),
    with_code: bool = True,
    large: bool = False,
    progress: ProgressListener = SILENT,
) -> Cargo:
    """The data of a submission. Raises ConfigError for problems with the job before anything is sent."""
    cargo = Cargo(secrets=Secrets(cluster.secrets))
    if job is None and not program:
        return cargo
    for resolved in _resolved(job, cluster, stage, program, overrides):
        _require_absolute(resolved, cluster, overrides)
        if name := resolved.job.notify.url_variable:
            cargo.environment |= {name: os.environ[name]} if name in os.environ else {}
        if job is not None and not _comes_along(job, resolved.job_file):
            cargo.job = text_file(resolved.job_file)
        if with_code:
            _add_code(cargo, resolved, large=large, progress=progress)
    return cargo


def _resolved(
    job: str | None, cluster: Cluster, stage: str | None, program: Sequence[str], overrides: Sequence[str]
) -> list[Resolved]:
    """The job, or each of its stages."""
    try:
        return [resolve(job, cluster, overrides, program=program, stage=stage)]
    except HasStages:
        assert job is not None
        names = [one.name for one in stages_of(job, Path.cwd())]
        return [resolve(job, cluster, overrides, program=program, stage=name) for name in names]


def _add_code(cargo: Cargo, resolved: Resolved, *, large: bool, progress: ProgressListener) -> None:
    from clusterctl.launch.plan import has_project
    from clusterctl.launch.sent_code import LocalProject

    code = resolved.job.code
    if code is None or not has_project(resolved.job) or any(str(one.path) == code for one in cargo.projects):
        return
    known = cache_folder() / "remote" / "digests" / f"{hashlib.sha256(os.fsencode(code)).hexdigest()[:16]}.kept"
    try:
        cargo.projects.append(LocalProject(Path(code), known, large=large, progress=progress))
    except OSError as error:
        hint = "add unreadable files to .gitignore"
        raise ConfigError(f"cannot read the run's code: {reason(error)}", hint) from error


def _comes_along(job: str, file: Path) -> bool:
    """Whether the job is shipped with clusterctl, so that the other machine has it and its data."""
    return not ("/" in job or job.endswith(".toml")) and _is_shipped(file)


def _require_absolute(resolved: Resolved, cluster: Cluster, overrides: Sequence[str]) -> None:
    """Raise ConfigError for relative paths, whose base folder does not exist on the other machine."""
    typed = dict(setting.partition("=")[::2] for setting in overrides)
    is_own = resolved.job_file.is_file() and not _is_shipped(resolved.job_file)
    file = read_toml(resolved.job_file) if is_own else None
    for key in (("data", "root"), ("container", "image")):
        name = ".".join(key)
        path = str(typed.get(name, "").strip("\"'") or (file and file.get(key)) or "")
        if path and (name == "data.root" or path.startswith(".")) and not path.startswith(("/", "~")):
            message = f"{name}: {path} is a path on this machine, but the run will be on {cluster.host}"
            hint = f"use its path there, such as /shared/{os.path.basename(path)}"  # noqa: PTH119 - user's text
            raise ConfigError(message, hint)


def _is_shipped(file: Path) -> bool:
    return file.parent == shipped_folder() / "jobs"


def text_file(path: Path) -> SentFile:
    """The file at `path`, to be sent. Raises ConfigError if it cannot be read."""
    try:
        text = path.read_bytes().decode(errors="surrogateescape")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", f"see: ls -l {path}") from error
    return SentFile(os.path.normpath(path.parent.resolve() / path.name), text)
