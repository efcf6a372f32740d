"""Cluster: what Slurm says of itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clusterctl.checks.check import Check, fail, ok, warn
from clusterctl.errors import SlurmError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.checks.surroundings import Answer, Surroundings
    from clusterctl.spec import Cluster


def cluster_rules(found: Surroundings) -> Iterator[Check]:
    cluster, answers = found.cluster, found.slurm
    if found.login_node and not cluster.is_slurm:
        emulator = cluster.emulator
        yield ok("emulator", f"{emulator.nodes} virtual nodes with {emulator.cpus_per_node} CPUs each on this machine")
    if not answers:
        return
    version = answers["version"]
    if isinstance(version, SlurmError):
        yield fail("slurm", version.message, version.hint)
        return
    yield ok("slurm", version.strip().removeprefix("slurm ") or "no answer")
    yield _controller(answers["ping"])
    if not isinstance(answers["partitions"], SlurmError):
        yield _partition(answers["partitions"].split(), cluster.partition)
    if not isinstance(answers["config"], SlurmError):
        kind = re.search(r"AccountingStorageType\s*=\s*(\S+)", answers["config"])
        on = kind and not kind[1].endswith(("/none", "(null)"))
        yield ok("accounting", "on" if on else "off: only the run's own files record how it ended")
    if not isinstance(answers["srun"], SlurmError):
        yield _pyxis("--container-image" in answers["srun"], cluster)


def _controller(answer: Answer) -> Check:
    if isinstance(answer, SlurmError):
        return fail("controller", answer.message, answer.hint)
    if re.search(r"\bUP\b", answer):
        return ok("controller", "answers")
    problem = answer.strip().replace("\n", "; ") or "no answer"
    return fail("controller", problem, "ask your administrator: scontrol ping")


def _partition(known: list[str], wanted: str | None) -> Check:
    names = [name.rstrip("*") for name in known]
    one_of = f"to one of: {', '.join(names)}"
    if wanted is None:
        default = next((name.rstrip("*") for name in known if name.endswith("*")), None)
        if default:
            return ok("partition", f"{default}, Slurm's default")
        return warn(
            "partition", "none is set, and Slurm has no default", f"set `partition` in the cluster file {one_of}"
        )
    missing = [name for name in wanted.split(",") if name not in names]
    if missing:
        return fail("partition", f"Slurm has no partition {', '.join(missing)}", f"set `partition` {one_of}")
    return ok("partition", wanted)


def _pyxis(there: bool, cluster: Cluster) -> Check:
    if not cluster.has_pyxis:
        return ok("containers", "images are run by clusterctl itself")
    if there:
        return ok("containers", "srun has pyxis")
    if cluster.container.image:
        hint = 'set container_runtime = "builtin" in the cluster file, or ask your administrator for pyxis'
        return fail("containers", "srun --help shows no --container-image, and the cluster file has an image", hint)
    return ok("containers", "none: jobs run on the host")
