"""Creates the directory of a new run, before its job is submitted."""

from __future__ import annotations

import os
import platform
import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import clusterctl
from clusterctl.launcher.config.client_data import client_data
from clusterctl.launcher.submission.git import GitState, git_state
from clusterctl.launcher.submission.module_archives import link_archives
from clusterctl.launcher.submission.plan import activated_environments
from clusterctl.launcher.submission.script import render
from clusterctl.launcher.submission.snapshot import link_code
from clusterctl.shared.errors import ConfigError, ImageError
from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.files import read_regular, write_json, write_text
from clusterctl.shared.record.layout import ENVIRONMENT_RECORD, RUN_FORMAT
from clusterctl.shared.record.ownership import make_new
from clusterctl.shared.spec import to_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.containers.contents import ImageRecord
    from clusterctl.launcher.submission.plan import Plan
    from clusterctl.launcher.submission.snapshot import Code
    from clusterctl.shared.record.layout import RunDir
    from clusterctl.shared.spec.keys import Difference


@dataclass(frozen=True)
class Earlier:
    """An earlier run to repeat (`rerun`): the snapshot of its code, and the settings to change."""

    run: RunDir
    code: Code
    changes: tuple[Difference, ...]


@dataclass(frozen=True)
class CodeOrigin:
    """The origin of a run's code: its fields in run.json, and the patch of uncommitted changes."""

    record: Mapping[str, Any] = field(default_factory=dict)
    patch: str = ""


def from_project(resolved: Resolved) -> CodeOrigin:
    """Git's state of the project, read here or on the machine that sent it."""
    folder = Path(resolved.job.code or resolved.job_file.resolve().parent)
    if client := client_data():
        sent = client.project(folder)
        state = GitState(sent.commit, sent.patch) if sent and sent.commit else None
    else:
        state = git_state(folder)
    if state is None:
        return CodeOrigin({"git": None})
    patch = resolved.secrets.hide(state.patch) if state.patch else ""
    return CodeOrigin({"git": {"commit": state.commit, "dirty": state.dirty}}, patch)


def from_snapshot(run: RunDir) -> CodeOrigin:
    """The origin recorded in `run`, which has the same project: git's state."""
    before = read_fields(run.run_json).content
    patch = b""
    with suppress(OSError):  # missing or unreadable
        patch = read_regular(run.git_patch, lambda file: file.read())
    return CodeOrigin({"git": before.get("git")}, patch.decode(errors="surrogateescape"))


def from_earlier(earlier: Earlier) -> CodeOrigin:
    """The fields of run.json about the run that this one repeats."""
    origin = from_snapshot(earlier.run)
    changes = [change._asdict() for change in earlier.changes]
    return CodeOrigin({**origin.record, "rerun_of": earlier.run.id, "changes": changes}, origin.patch)


def versions(plan: Plan) -> dict[str, Any]:
    """The fields of run.json about programs and image: equal for all runs of a sweep that share both."""
    import submitit  # late: slow, but a submission needs it anyway; importlib.metadata would add 20 ms

    return {
        "versions": {
            "clusterctl": clusterctl.__version__,
            "python": platform.python_version(),
            "submitit": str(submitit.__version__),
            **task_versions(plan),
        },
        "image": {"digest": image_digest(plan)},
    }


def record_of(plan: Plan, resolved: Resolved, words: Sequence[str]) -> dict[str, Any]:
    """The content of run.json. `words` are the command line of the submission."""
    return {
        "schema_version": RUN_FORMAT,
        "id": plan.run.id,
        "created": time.time(),
        "job": to_record(resolved.secrets.hide_in(resolved.job)),
        "cluster": to_record(resolved.secrets.hide_in(resolved.cluster)),
        "origins": resolved.origins,
        "argv": resolved.secrets.hide_typed(words),
        **({"stage": resolved.stage} if resolved.stage else {}),
        **environment_fields(plan),
    }


def environment_fields(plan: Plan) -> dict[str, Any]:
    """The field of run.json about the environment that was built from a lock file; none without one.

    The credentials of a package index are in no record.
    """
    if not plan.environment:
        return {}
    found = read_fields(plan.environment.folder / ENVIRONMENT_RECORD).content
    known = {name: found.get(name) for name in ("lock", "python", "packages")}
    return {"environment": {"folder": str(plan.environment.folder), **known}}


def write_run(
    plan: Plan, code: Path, archives: Mapping[Path, Path], record: Mapping[str, Any], patch: str = ""
) -> None:
    """Create the directory of `plan`'s run with the snapshot `code`. Raises ConfigError and then leaves nothing."""
    run = plan.run
    try:
        make_new(run.path)
    except OSError as error:
        raise _unwritten(run, error) from error
    try:
        make_new(run.attempts_folder)
        make_new(run.pickles)
        link_code(run, code)
        link_archives(run, archives)
        link_environment(plan)
        write_script(plan)
        if patch:
            write_text(run.git_patch, patch)
        # Last: a directory without a record is not listed, so nobody sees a run that is half written.
        write_json(run.run_json, record)
    except OSError as error:
        shutil.rmtree(run.path, ignore_errors=True)
        raise _unwritten(run, error) from error


def link_environment(plan: Plan) -> Callable[[], object]:
    """Make the run refer to its Python environment, so that `clean` keeps it; returns a function that takes it back."""
    venv = plan.run.venv
    before = venv.readlink() if venv.is_symlink() else None
    after = plan.environment.folder if plan.environment else None

    def lead_to(folder: Path | None) -> None:
        if folder is None:
            venv.unlink(missing_ok=True)
            return
        # `clean`, which runs at any time, must never find the run without the environment that it needs.
        aside = venv.with_name(f".{venv.name}.{os.urandom(4).hex()}")
        aside.symlink_to(folder)
        aside.replace(venv)

    if before == after:
        return lambda: None
    lead_to(after)
    return lambda: lead_to(before)


def write_script(plan: Plan) -> None:
    """Write the run's script, and what a batch script of the user's own needs to start. Raises OSError."""
    if plan.script:
        plan.script.write(plan.run)
    write_text(plan.run.script, render(plan), mode=0o700)


def _unwritten(run: RunDir, error: OSError) -> ConfigError:
    taken = isinstance(error, FileExistsError)
    hint = "submit again: each run has another name" if taken else "is the disk full? see: df -h"
    return ConfigError(f"cannot write the run directory: {run.path}: {error.strerror}", hint)


# Which torch and which image a run's tasks will use, as far as folder names and an image's record show.


_PACKAGE = "torch"
_INSTALLED = f"lib/python3*/*-packages/{_PACKAGE}-*.dist-info"
_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})$")


def task_versions(plan: Plan) -> dict[str, str]:
    """The version of torch installed for the tasks; empty if it is not visible from here."""
    if plan.view:
        record = _image(plan.view.image)
        return {_PACKAGE: record.versions[_PACKAGE]} if record and _PACKAGE in record.versions else {}
    folders = [*activated_environments(plan.python, plan.setup)]
    if plan.python_is_named:
        del folders[1:]  # it takes precedence over environments that the setup lines activate
    # The environment that was activated last comes first on PATH. With two versions in it, none is certain.
    found = [path.name for folder in folders[-1:] for path in Path(folder).glob(_INSTALLED)]
    return {_PACKAGE: found[0].removeprefix(f"{_PACKAGE}-").removesuffix(".dist-info")} if len(found) == 1 else {}


def image_digest(plan: Plan) -> str | None:
    """The digest of the tasks' image, from its record or its reference; None if neither has one."""
    if not plan.view:
        return None
    if named := _DIGEST.search(plan.view.image):
        return named[1]
    record = _image(plan.view.image)
    return record.digest if record else None


def _image(image: str) -> ImageRecord | None:
    """The record beside an image file."""
    from clusterctl.launcher.containers.contents import SUFFIX, read_record  # most runs have no image

    if not image.startswith("/") or not image.endswith(SUFFIX):
        return None
    try:
        return read_record(Path(image))
    except (ImageError, OSError):
        return None
