"""Requests to clusterctl on another machine, and the data sent with them.

That is a job file, other files, the job's code, and its variables.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.launcher.config import cache_folder, resolve, resolve_script, shipped_folder
from clusterctl.launcher.config.clusters import cluster_file, user_file
from clusterctl.launcher.config.locks import lock_text
from clusterctl.launcher.config.places import data_folder
from clusterctl.launcher.config.roles import HasStages, stages_of
from clusterctl.launcher.config.secrets import Secrets
from clusterctl.launcher.config.sent import Sent, SentFile, SentProject
from clusterctl.launcher.config.shown import SILENT
from clusterctl.launcher.config.source import read_toml
from clusterctl.launcher.config.user_script import find_script, read_script
from clusterctl.launcher.remote.connection import Callbacks as Callbacks
from clusterctl.launcher.remote.connection import Conversation as Conversation
from clusterctl.launcher.remote.connection import Repeat as Repeat
from clusterctl.launcher.remote.connection import Signals as Signals
from clusterctl.launcher.remote.frames import OF_TERMINALS, RemoteRequest
from clusterctl.launcher.remote.frames import Terminal as Terminal
from clusterctl.launcher.remote.ssh import bring_port as bring_port
from clusterctl.launcher.remote.ssh import leave_port as leave_port
from clusterctl.launcher.remote.values import parsed as parsed
from clusterctl.shared.errors import ConfigError, HostError, reason
from clusterctl.shared.record.files import open_regular, read_whole, write_json
from clusterctl.shared.record.ownership import make_private

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.launcher.api.remote.cluster import RemoteCluster
    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.config.shown import ProgressListener
    from clusterctl.launcher.submission.sent_code import LocalProject
    from clusterctl.shared.spec import Cluster


_PIECE = 2**18


@dataclass
class Payload:
    """The data sent with a command: a job file, other files by name, the job's code."""

    job: SentFile | None = None
    others: list[SentFile] = field(default_factory=list)
    uploads: list[Path] = field(default_factory=list)
    projects: list[LocalProject] = field(default_factory=list)
    locks: list[Path] = field(default_factory=list)  # also among `others`
    progress: ProgressListener = SILENT
    environment: dict[str, str] = field(default_factory=dict)
    variables: frozenset[str] = frozenset()

    def answer(self, question: dict[str, Any]) -> Iterator[bytes]:
        """Answer the other machine's questions, but only about this data: the machine is not trusted."""
        if "project" in question:
            found = (project for project in self.projects if str(project.path) == question["project"])
            for project in found:
                yield from project.answer(question)
        elif question.get("upload") in [*map(str, self.uploads)]:
            with open_regular(Path(question["upload"])) as file:
                while piece := file.read(_PIECE):
                    yield piece
        elif question.get("wheels") in [*map(str, self.locks)]:
            from clusterctl.launcher.submission.environments import fetched  # only for a host without internet

            yield from fetched(Path(question["wheels"]), question, self.progress)
        elif (name := question.get("variable")) in [*self.variables]:
            yield os.environ.get(str(name), "").encode(errors="surrogateescape")

    def refused(self, question: dict[str, Any]) -> str | None:
        """The variable that `question` asks for, if there is one here that may not be sent."""
        name = question.get("variable")
        return name if isinstance(name, str) and name in os.environ and name not in self.variables else None


class Sends(Enum):
    """What goes to the other machine with a job: each includes those before it."""

    JOB = auto()  # its file, for a question about it
    VARIABLES = auto()  # and the variables that it may name
    CODE = auto()  # and its project and lock file


def load_payload(
    cluster: Cluster,
    job: str | None,
    *,
    stage: str | None = None,
    program: Sequence[str] = (),
    overrides: Sequence[str] = (),
    sends: Sends = Sends.CODE,
    large_code: bool = False,
    progress: ProgressListener = SILENT,
) -> Payload:
    """The data of a submission. Raises ConfigError for problems with the job before anything is sent."""
    payload = Payload(progress=progress)
    if job is None and not program:
        return payload
    try:
        if job and (path := find_script(job, Path.cwd())):
            script = read_script(path, job, tuple(program))
            jobs = [resolve_script(script, cluster, overrides, {}, Path.cwd())]
        else:
            jobs = [resolve(job, cluster, overrides, program=program, stage=stage)]
    except HasStages:
        assert job is not None
        stages = stages_of(job, Path.cwd())
        jobs = [resolve(job, cluster, overrides, program=program, stage=one.name) for one in stages]
    for resolved in jobs:
        _require_absolute(resolved, cluster, overrides)
        # A job that is shipped with clusterctl is on the other machine too, with its data.
        is_there = job is not None and not ("/" in job or job.endswith(".toml")) and _is_shipped(resolved.job_file)
        if job is not None and not is_there:
            payload.job = text_file(resolved.job_file)
        if sends is Sends.JOB:
            continue
        # Record the names, not the values, of the secret variables that the host is about to get.
        before = _variables_sent(cluster)
        if (names := {name for name in resolved.job.env if name in Secrets(cluster.secrets)}) - before:
            with suppress(OSError):  # then they have to be given again
                make_private(_sent_names(cluster).parent)
                write_json(_sent_names(cluster), sorted(names | before))
        if name := resolved.job.notify.url_variable:
            payload.environment |= {name: os.environ[name]} if name in os.environ else {}
        if sends is Sends.CODE:
            if resolved.job.environment and (lock := Path(resolved.job.environment)) not in payload.locks:
                payload.locks.append(lock)
                payload.others.append(SentFile(str(lock), lock_text(lock)))
            _add_code(payload, resolved, large=large_code, progress=progress)
    return payload


def payload_of_restart(cluster: Cluster) -> Payload:
    """The data of `resume` and `rerun`: the run's job is there, without the values of its secret variables.

    So the other machine may ask for variables, but only for those that the cluster's `env` names here, or that the
    `env` of a job named which this machine has submitted to it before.
    """
    named = {*cluster.env, *_variables_sent(cluster)}
    return Payload(variables=frozenset(name for name in named if name in Secrets(cluster.secrets)))


def _variables_sent(cluster: Cluster) -> set[str]:
    with suppress(OSError, ValueError):
        names = json.loads(read_whole(_sent_names(cluster)))
        return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()
    return set()


def _sent_names(cluster: Cluster) -> Path:
    return data_folder() / "remote-variables" / f"{hashlib.sha256(str(cluster.host).encode()).hexdigest()[:16]}.json"


def _add_code(payload: Payload, resolved: Resolved, *, large: bool, progress: ProgressListener) -> None:
    from clusterctl.launcher.submission.plan import has_project
    from clusterctl.launcher.submission.sent_code import LocalProject

    code = resolved.job.code
    if code is None or not has_project(resolved.job) or any(str(one.path) == code for one in payload.projects):
        return
    known = cache_folder() / "remote" / "digests" / f"{hashlib.sha256(os.fsencode(code)).hexdigest()[:16]}.kept"
    try:
        payload.projects.append(LocalProject(Path(code), known, large=large, progress=progress))
    except OSError as error:
        hint = "add unreadable files to .gitignore"
        raise ConfigError(f"cannot read the run's code: {reason(error)}", hint) from error


def _require_absolute(resolved: Resolved, cluster: Cluster, overrides: Sequence[str]) -> None:
    """Raise ConfigError for relative paths, whose base folder does not exist on the other machine."""
    if resolved.script:  # it names neither data nor an image
        return
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
        text = read_whole(path).decode(errors="surrogateescape")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read {path}: {why}", f"see: ls -l {path}") from error
    return SentFile(os.path.normpath(path.parent.resolve() / path.name), text)


class Printed:
    """The end of what a command prints there."""

    _MOST_BYTES = 2**16

    def __init__(self) -> None:
        self._end = b""

    def take(self, data: bytes) -> None:
        self._end = (self._end + data[-self._MOST_BYTES :])[-self._MOST_BYTES :]

    @property
    def text(self) -> str:
        return self._end.decode(errors="replace")


class Answer:
    """What a command prints there for a program: one JSON value."""

    _MOST_BYTES = 2**27

    def __init__(self) -> None:
        self.content = bytearray()

    def take(self, data: bytes) -> None:
        self.content += data
        if len(self.content) > self._MOST_BYTES:
            most = self._MOST_BYTES // 2**20
            raise HostError(f"the other clusterctl sent an answer of more than {most} MiB", "run the command again")

    def forget(self) -> None:
        self.content.clear()


def request(
    place: RemoteCluster,
    words: Sequence[str],
    payload: Payload | None = None,
    *,
    terminal: Terminal | None = None,
    interactive: bool = False,
    once: bool = False,
) -> RemoteRequest:
    """A request to clusterctl on the machine of `place`."""
    payload = payload or Payload()
    user = user_file()
    projects = [SentProject(str(one.path), one.tree, len(one.files), one.size, *one.git()) for one in payload.projects]
    sent = Sent(
        folder=str(Path.cwd()),
        cluster=text_file(place.file),
        user=text_file(user) if user.is_file() else None,
        job=payload.job,
        others=tuple(payload.others),
        uploads=tuple(map(str, payload.uploads)),
        typed="" if place.file == cluster_file(None) else place.name,
        host=place.host,
        projects=tuple(projects),
    )
    shown = {name: os.environ[name] for name in sorted(OF_TERMINALS) if name in os.environ}
    return RemoteRequest(
        mark=uuid.uuid4().hex,
        words=tuple(words),
        sent=sent,
        terminal=terminal or Terminal(),
        interactive=interactive,
        environment={**shown, **payload.environment, "CLUSTERCTL_CLUSTER": place.name},
        once=uuid.uuid4().hex if once else "",
    )
