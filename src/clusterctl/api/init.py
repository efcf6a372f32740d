"""Write a user's first cluster file and job, based on Slurm's configuration."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.checks.look import file_system
from clusterctl.errors import ConfigError, SlurmError, UsageError, reason
from clusterctl.launch.batch_script import CarriedLine as CarriedLine
from clusterctl.launch.batch_script import Converted as Converted
from clusterctl.launch.batch_script import convert
from clusterctl.launch.first_files import ClusterChoices as ClusterChoices
from clusterctl.launch.first_files import cluster_text, first_job, likely_partition, toml_text
from clusterctl.runs.file_systems import LOCAL
from clusterctl.runs.files import nearest_existing, read_beginning, write_text
from clusterctl.slurm import Slurm
from clusterctl.slurm.site import Site as Site
from clusterctl.slurm.site import ask_site
from clusterctl.spec import Cluster, from_record
from clusterctl.spec.records import InvalidRecord
from clusterctl.spec.values import as_name

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHARED_FOLDERS = ("SCRATCH", "WORK", "PROJECT", "HOME")  # variables that sites commonly set
_LARGEST_SCRIPT = 2**20
_FIRST = ("The first run: every rank prints its node. Then your own program: clusterctl submit -- python train.py",)


def survey() -> Site:
    """Query the Slurm whose commands are on PATH. Raises SlurmError if there is none."""
    try:
        return ask_site(Slurm.of(Cluster(name="new", polling_floor=0)))
    except SlurmError as error:
        hint = "run this on a login node; without Slurm no file is needed: clusterctl submit cora --cluster local"
        raise SlurmError(error.message, error.hint if "partition" in error.message else hint) from error


def proposed(site: Site, environment: Mapping[str, str] = os.environ) -> ClusterChoices:
    """Sensible defaults. No account is chosen if there are several: Slurm knows the user's default."""
    name = as_name(site.name) or "mine"
    account = site.accounts[0] if len(site.accounts) == 1 else ""
    return ClusterChoices(name, likely_partition(site.inventory), _runs(environment), account)


@dataclass(frozen=True)
class FirstFiles:
    """The files to write, and the settings that could not be determined."""

    texts: Mapping[Path, str]
    unknown: tuple[str, ...] = ()

    def write(self, *, force: bool = False) -> None:
        """Write all files or none: raises UsageError if a different file exists, unless `force` replaces it."""
        there = [str(path) for path, text in self.texts.items() if _differs(path, text)]
        if there and not force:
            raise UsageError(f"file exists: {', '.join(there)}", "choose another name, or replace it with --force")
        for path, text in self.texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text, mode=0o644)


def converted(script: Path) -> Converted:
    """Convert a batch script to a job; it is parsed, never executed. Raises ConfigError."""
    try:
        text = read_beginning(script, _LARGEST_SCRIPT + 1)
        if len(text) > _LARGEST_SCRIPT:
            raise ConfigError(f"{script}: larger than 1 MiB", "is it a batch script?")
        return convert(text.decode())
    except OSError as error:
        hint = "name a script for sbatch, such as: --from train.sbatch"
        raise ConfigError(f"cannot read the script: {reason(error)}", hint) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{script}: not UTF-8 text", "is it a batch script?") from error


def with_script_settings(choices: ClusterChoices, site: Site, script: Converted) -> ClusterChoices:
    """`choices` with the partition, the account and the QOS of the script."""
    found = script.job.get("resources", {})
    own = {key: found[key] for key in ("partition", "account", "qos") if key in found}
    if own.get("partition") not in site.inventory.partitions:  # unknown, or several
        own.pop("partition", None)
    return replace(choices, **own)


def job_file(script: Path, found: Converted) -> dict[Path, str]:
    """The job file converted from a batch script, named after it."""
    name = as_name(script.stem) or "job"
    return {Path("jobs", f"{name}.toml"): toml_text(found.job, [f"From {script.name}, by clusterctl init"])}


def first_files(
    site: Site,
    chosen: ClusterChoices,
    environment: Mapping[str, str] = os.environ,
    jobs: Mapping[Path, str] | None = None,
) -> FirstFiles:
    """A cluster file, and `jobs` or a first job. Raises ConfigError for a choice that is invalid in a cluster file."""
    if chosen.partition not in site.inventory.partitions:
        raise ConfigError(f"no such partition: {chosen.partition}", f"one of {', '.join(site.inventory.partitions)}")
    kind = file_system(nearest_existing(Path(chosen.runs)))
    unknown = site.unknown
    if not kind or kind in LOCAL:
        unknown += (f"whether {chosen.runs} is visible on compute nodes (its file system is {kind or 'unknown'})",)
    text = cluster_text(site, chosen, environment, kind)
    try:
        from_record(Cluster, {"name": chosen.name, **tomllib.loads(text)}, parse=True)
    except InvalidRecord as error:
        raise ConfigError(error.message, "choose another value") from error
    jobs = jobs or {Path("jobs", "first.toml"): toml_text(first_job(site, chosen), _FIRST)}
    return FirstFiles({Path("cluster", f"{chosen.name}.toml"): text, **jobs}, unknown)


def _differs(path: Path, text: str) -> bool:
    content = text.encode()
    try:
        return read_beginning(path, len(content) + 1) != content
    except FileNotFoundError:
        return False
    except OSError:  # not a file, or unreadable
        return True


def _runs(environment: Mapping[str, str]) -> str:
    """A runs folder on a shared file system if there is one, else below the home folder."""
    if environment.get("CLUSTERCTL_RUNS"):
        return os.path.abspath(environment["CLUSTERCTL_RUNS"])  # noqa: PTH100 - keeps links
    folders = [Path(environment[name]) for name in _SHARED_FOLDERS if environment.get(name, "").startswith("/")]
    usable = [folder for folder in folders if os.access(folder, os.W_OK | os.X_OK)] or [Path.home()]
    shared = [folder for folder in usable if file_system(folder) not in {*LOCAL, ""}]
    return str((shared or usable)[0] / "clusterctl" / "runs")
