"""Write a user's first cluster file and job, based on Slurm's configuration (`ask_site`) or a batch script."""

from __future__ import annotations

import getpass
import json
import os
import re
import tomllib
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.checks.look import file_system
from clusterctl.launcher.config.places import names, shipped_folder, user_config_folder
from clusterctl.launcher.config.shown import Shown
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.slurm.rules import CONFIG, PARTITIONS, QOS, Rules
from clusterctl.launcher.submission.batch_script import CarriedLine as CarriedLine
from clusterctl.launcher.submission.batch_script import Converted as Converted
from clusterctl.launcher.submission.batch_script import convert
from clusterctl.shared.errors import ConfigError, SlurmError, UsageError, reason
from clusterctl.shared.record.files import LOCAL, nearest_existing, read_beginning, write_text
from clusterctl.shared.spec import Cluster, from_record
from clusterctl.shared.spec.records import InvalidRecord
from clusterctl.shared.spec.values import Duration, as_name, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from clusterctl.launcher.slurm import Inventory, Partition


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
    """Sensible defaults, with the runs on a shared file system if there is one, else below the home folder.

    No account is chosen if there are several: Slurm knows the user's default.
    """
    name = as_name(site.name) or "mine"
    account = site.accounts[0] if len(site.accounts) == 1 else ""
    if environment.get("CLUSTERCTL_RUNS"):
        runs = os.path.abspath(environment["CLUSTERCTL_RUNS"])  # noqa: PTH100 - keeps links
    else:
        folders = [Path(environment[name]) for name in _SHARED_FOLDERS if environment.get(name, "").startswith("/")]
        usable = [folder for folder in folders if os.access(folder, os.W_OK | os.X_OK)] or [Path.home()]
        shared = [folder for folder in usable if file_system(folder) not in {*LOCAL, ""}]
        runs = str((shared or usable)[0] / "clusterctl" / "runs")
    return ClusterChoices(name, likely_partition(site.inventory), runs, account)


@dataclass(frozen=True)
class FirstFiles(Shown):
    """The files to write, and the settings that could not be determined."""

    texts: Mapping[Path, str]
    unknown: tuple[str, ...] = ()
    rows: tuple[CarriedLine, ...] = ()  # each line of a batch script, and what it was converted to

    def write(self, *, force: bool = False) -> None:
        """Write all files or none: raises UsageError if a different file exists, unless `force` replaces it."""
        there = [str(path) for path, text in self.texts.items() if _differs(path, text)]
        if there and not force:
            raise UsageError(f"file exists: {', '.join(there)}", "choose another name, or replace it with `force=True`")
        for path, text in self.texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text, mode=0o644)


def init(
    name: str | None = None,
    *,
    script: str | os.PathLike[str] | None = None,
    force: bool = False,
    choose: Callable[[Site, ClusterChoices], ClusterChoices] = lambda _, choices: choices,
) -> FirstFiles:
    """Query Slurm, and write cluster/NAME.toml and a first job file in the current folder; returns what was written.

    With `script`, the job is converted from a batch script, which is read but not executed; it is written only if it
    does all that the script does. `choose` may change the proposed partition, folder, account and QOS. Raises
    SlurmError without Slurm, ConfigError for a script that cannot be read, and UsageError if the cluster's name means
    another file, or if a different file exists, unless `force` replaces it.
    """
    path = None if script is None else Path(script)
    found = converted(path) if path else None
    jobs = job_file(path, found) if path and found else None
    try:
        site = survey()
    except SlurmError as error:
        if jobs is None:
            raise
        files = FirstFiles(jobs, (f"what the cluster has: {error.message}",))
    else:
        choices = proposed(site)
        choices = with_script_settings(choices, site, found) if found else choices
        chosen = choose(site, replace(choices, name=name) if name else choices)
        # `--cluster NAME` must not find another file than the one to be written here.
        used = names("cluster", Path.cwd()).get(chosen.name)
        folders = [folder / "cluster" for folder in (user_config_folder(), shipped_folder())]
        if used and used.parent in folders and used != Path("cluster", used.name).absolute():
            raise UsageError(
                f"there is a cluster of this name, which comes first: {used}", "choose another: clusterctl init NAME"
            )
        files = first_files(site, chosen, jobs=jobs)
    files.write(force=force)
    return replace(files, rows=found.rows if found else ())


def converted(script: Path) -> Converted:
    """Convert a batch script to a job; it is parsed, never executed. Raises ConfigError."""
    try:
        text = read_beginning(script, _LARGEST_SCRIPT + 1)
        if len(text) > _LARGEST_SCRIPT:
            raise ConfigError(f"{script}: larger than 1 MiB", "is it a batch script?")
        return convert(text.decode())
    except OSError as error:
        hint = 'name a script for sbatch, such as: `script="train.sbatch"`'
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
    """The job file converted from a batch script, named after it; none if the job would lack anything of it."""
    if not found.is_whole:
        return {}
    name = as_name(script.stem) or "job"
    return {Path("jobs", f"{name}.toml"): toml_text(found.job, [f"From {script.name}, by clusterctl init"])}


def first_files(
    site: Site,
    chosen: ClusterChoices,
    environment: Mapping[str, str] = os.environ,
    jobs: Mapping[Path, str] | None = None,
) -> FirstFiles:
    """A cluster file, and `jobs` or by default a first job.

    Raises ConfigError for a choice that is invalid in a cluster file.
    """
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
    if jobs is None:
        jobs = {Path("jobs", "first.toml"): toml_text(first_job(site, chosen), _FIRST)}
    return FirstFiles({Path("cluster", f"{chosen.name}.toml"): text, **jobs}, unknown)


def _differs(path: Path, text: str) -> bool:
    content = text.encode()
    try:
        return read_beginning(path, len(content) + 1) != content
    except FileNotFoundError:
        return False
    except OSError:  # not a file, or unreadable
        return True


# A new user's first cluster file and job file as text, with comments that explain each value.


_MINUTES = Duration(60)
_FIRST_SECONDS = 600
FIRST_PROGRAM = (
    "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], 'on', os.uname().nodename)"
)


@dataclass(frozen=True)
class ClusterChoices:
    """The user's choices. Without account or QOS Slurm uses the user's default."""

    name: str
    partition: str
    runs: str
    account: str = ""
    qos: str = ""


def likely_partition(inventory: Inventory) -> str:
    """The default partition; if only others have GPUs, the one with the most."""
    first = next(iter(inventory.partitions.values()))
    return max(
        inventory.partitions.values(),
        key=lambda one: (_gpu_count(first, inventory) > 0 and one is first, _gpu_count(one, inventory), one is first),
    ).name


def cluster_text(site: Site, chosen: ClusterChoices, variables: Mapping[str, str], shared: str = "") -> str:
    """The cluster file. `variables` are environment variables, `shared` is the type of the runs' file system."""
    inventory = site.inventory
    partition = inventory.partitions[chosen.partition]
    others = [_described(one, inventory) for one in inventory.partitions.values() if one is not partition]
    nodes = inventory.nodes_of(partition)
    kinds = Counter(gpu for node in nodes for gpu in {(gpu.type, gpu.total) for gpu in node.gpus})
    gpus = _key("gpus_per_node", 0, "the partition has no GPUs")
    if kinds:  # those that most nodes have, with the type if nodes of the partition have several
        (kind, count), _ = kinds.most_common(1)[0]
        several = len({name for name, _ in kinds}) > 1
        there = (f"{plural(number, 'node')} with {total} {name or 'GPUs'}" for (name, total), number in kinds.items())
        gpus = _key("gpus_per_node", f"{kind}:{count}" if kind and several else count, ", ".join(there))
    lines = [
        "# Written by `clusterctl init` from Slurm's configuration. All keys: clusterctl config keys",
        _key("kind", "slurm"),
        _key("partition", chosen.partition, _described(partition, inventory)),
        *(f"# another partition: {other}" for other in others),
        _optional("account", chosen.account, site.accounts),
        _optional("qos", chosen.qos, site.qos),
        *(f"# {_printable(line)}" for line in site.rules.lines(chosen.partition, chosen.qos)),
        gpus,
        _key("gpu_request", "gpus-per-node", 'or "gres" if sbatch rejects --gpus-per-node'),
        _key("runs", chosen.runs, f"must be visible to login and compute nodes{f'; {shared}' if shared else ''}"),
    ]
    if site.has_pyxis:
        lines.append(_key("container_runtime", "pyxis", "srun has --container-image"))
    elif site.has_pyxis is not None:
        lines.append(_key("container_runtime", "builtin", "no pyxis; nodes need unsquashfs and user namespaces"))
    if variables.get("SLURM_CONF"):
        lines.append(_key("slurm_conf", variables["SLURM_CONF"], "$SLURM_CONF"))
    lines += [
        '# setup = ["module load cuda", "source /shared/me/env/bin/activate"] # on the host, before the tasks',
        '# interface = "ib0" # the network between the nodes, if the ranks cannot connect to each other',
    ]
    return "".join(f"{line}\n" for line in lines)


def first_job(site: Site, chosen: ClusterChoices) -> dict[str, Any]:
    """A job that takes a minute to show that everything works: each rank prints its node."""
    partition = site.inventory.partitions[chosen.partition]
    usable = sum(node.can_start or node.state == "allocated" for node in site.inventory.nodes_of(partition))
    nodes = max(1, min(2, usable, partition.most_nodes or 2))
    time = _MINUTES.write(min(_FIRST_SECONDS, partition.longest or _FIRST_SECONDS))
    return {
        "workload": "command",
        "argv": ["python", "-c", FIRST_PROGRAM],
        "resources": {"nodes": nodes, "time": time},
    }


def toml_text(values: Mapping[str, Any], comments: Iterable[str] = ()) -> str:
    """Nested tables as a TOML file, under `comments`."""
    tables = {name: value for name, value in values.items() if isinstance(value, dict)}
    lines = [f"# {_printable(comment)}" for comment in comments]
    lines += [_key(name, value) for name, value in values.items() if name not in tables]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *_table(table)]
    return "".join(f"{line}\n" for line in lines)


def _table(values: Mapping[str, Any]) -> list[str]:
    inline = {name: value for name, value in values.items() if isinstance(value, dict)}
    written = (f"{name} = {{ {', '.join(_table(table))} }}" for name, table in inline.items())
    return [*(_key(name, value) for name, value in values.items() if name not in inline), *written]


def _key(name: str, value: Any, comment: str = "") -> str:
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"{name} = {text}" + (f" # {_printable(comment)}" if comment else "")


def _optional(name: str, value: str, known: Sequence[str]) -> str:
    choices = f"yours: {', '.join(known)}" if known else ""
    return _key(name, value, choices) if value else f"# {_key(name, '...', choices or 'your default')}"


def _described(partition: Partition, inventory: Inventory) -> str:
    """gpu: 12 nodes, 4 a100 each, up to 2d."""
    nodes = inventory.nodes_of(partition)
    gpus = sorted({f"{gpu.total} {gpu.type or 'GPUs'}" for node in nodes for gpu in node.gpus})
    longest = f"up to {_MINUTES.write(partition.longest)}" if partition.longest else "no time limit"
    down = "" if partition.up else ", down"
    each = f", {' or '.join(gpus)} each" if gpus else ", no GPUs"
    return f"{partition.name}: {plural(len(nodes), 'node')}{each}, {longest}{down}"


def _gpu_count(partition: Partition, inventory: Inventory) -> int:
    return sum(gpu.total for node in inventory.nodes_of(partition) for gpu in node.gpus)


def _printable(text: str) -> str:
    """`text` without characters that a TOML comment cannot contain."""
    return "".join(character if character.isprintable() else "?" for character in text)


# Slurm's configuration and this user's associations, for a first cluster file: four requests in all.


_CLUSTER_NAME = re.compile(r"^ClusterName\s*=\s*(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Site:
    """The parts of a Slurm installation that this user may use. `unknown` describes what the user has to fill in."""

    inventory: Inventory
    name: str = ""
    accounts: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    has_pyxis: bool | None = None
    unknown: tuple[str, ...] = ()
    rules: Rules = field(default_factory=Rules)


def ask_site(slurm: Slurm) -> Site:
    """Request nodes, configuration, associations and srun's options. Raises SlurmError if there are no nodes."""
    inventory = slurm.nodes()
    if not inventory.partitions:
        raise SlurmError("sinfo shows no partition that you may use", "list partitions: sinfo")
    unknown = []

    def ask(what: str, *words: str) -> str:
        try:
            return slurm.answer(*words)
        except SlurmError as error:
            unknown.append(f"{what}: {error.message}")
            return ""

    config = ask("the cluster's name", *CONFIG)
    words = ("show", "associations", f"user={getpass.getuser()}", "format=Account,QOS")
    accounts, qos = parse_associations(ask("your accounts and QOS", "sacctmgr", "-n", "-P", *words))
    options = ask("whether srun has pyxis", "srun", "--help")
    partitions = ask("what happens to preempted jobs", *PARTITIONS)
    modes = ""
    if Rules.of(config, "").by_qos is not None:
        modes = ask("what happens to preempted jobs of each QOS", *QOS)
    name = _CLUSTER_NAME.search(config)
    pyxis = "--container-image" in options if options else None
    read = Rules.of(config, partitions, modes)
    return Site(inventory, name[1] if name else "", accounts, qos, pyxis, tuple(unknown), read)


def parse_associations(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The distinct accounts and QOS in sacctmgr's `account|qos,qos` lines."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") >= 1]
    accounts = dict.fromkeys(account for account, *_ in rows if account)
    return tuple(accounts), tuple(dict.fromkeys(name for _, qos, *_ in rows for name in qos.split(",") if name))
