"""The rules by which Slurm starts jobs again, preempts them and ends them, as far as it shows them to everybody."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.shared.spec import Job

CONFIG = ("scontrol", "show", "config")
PARTITIONS = ("scontrol", "show", "partition")
QOS = ("sacctmgr", "-n", "-P", "show", "qos", "format=Name,PreemptMode,GraceTime")
_CANCELS = "Slurm cancels the jobs that it preempts"
_CRED_EXPIRE = 120  # seconds, by default


@dataclass(frozen=True)
class Preemption:
    """What happens to a preempted job: `mode` as Slurm writes it, in capitals; `grace` is as shown, or empty."""

    mode: str
    grace: str = ""

    @property
    def cancels(self) -> bool:
        return "CANCEL" in self.mode


class Restarts(NamedTuple):
    """How the queue starts a run again: "requeue" or "successor"; None: its batch script asks Slurm when it starts.

    `cancels`: Slurm cancels the run's job when it preempts it. `words` are empty where Slurm shows nothing.
    """

    by: str | None
    words: str = ""
    cancels: bool = False


@dataclass(frozen=True)
class Rules:
    """`by_qos` is None unless the QOS decides what happens to a preempted job (PreemptType=preempt/qos)."""

    settings: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[str, Preemption] = field(default_factory=dict)
    by_qos: Mapping[str, Preemption] | None = None
    default: str = ""  # partition

    @classmethod
    def of(cls, config: str, partitions: str, qos: str = "") -> Rules:
        """The rules in the answers to CONFIG, PARTITIONS and QOS; unknown lines are skipped (slurm.conf(5)).

        The mode "cluster" of a QOS is PreemptMode of slurm.conf.
        """
        settings = dict(re.findall(r"^(\w+)[ \t]*=[ \t]*(\S+)", config, re.MULTILINE))
        modes, default = {}, ""
        for block in re.split(r"^(?=PartitionName=)", partitions, flags=re.MULTILINE):
            found = dict(re.findall(r"(?:^|\s)(PartitionName|Default|PreemptMode|GraceTime)=(\S+)", block))
            if "PartitionName" in found and "PreemptMode" in found:
                grace = f"{found['GraceTime']} s" if found.get("GraceTime", "0") != "0" else ""
                modes[found["PartitionName"]] = Preemption(found["PreemptMode"].upper(), grace)
                default = found["PartitionName"] if found.get("Default") == "YES" else default
        if settings.get("PreemptType") != "preempt/qos":
            return cls(settings, modes, None, default)
        by_qos = {}
        for name, mode, grace in (line.split("|") for line in qos.splitlines() if line.count("|") == 2):
            if name:
                own = settings.get("PreemptMode", "") if mode.lower() in ("", "cluster") else mode
                by_qos[name] = Preemption(own.upper(), "" if grace in ("", "00:00:00") else grace)
        return cls(settings, modes, by_qos, default)

    @property
    def _deciding(self) -> tuple[str, Mapping[str, Preemption]]:
        """What decides about a preempted job, "partition" or "QOS", and the rule of each."""
        return ("partition", self.partitions) if self.by_qos is None else ("QOS", self.by_qos)

    @property
    def requeue_seconds(self) -> int:
        """How long a requeued job waits at least (cred_expire)."""
        lifetime = re.search(r"cred_expire=([0-9]+)", self.settings.get("AuthInfo", ""))
        return int(lifetime[1]) if lifetime else _CRED_EXPIRE

    def cancelling(self, partition: str | None, qos: str | None) -> tuple[str, tuple[str, ...]]:
        """Where preempted jobs are cancelled: "partition" or "QOS", and their names; only the given one, if any."""
        what, modes = self._deciding
        mine = qos if what == "QOS" else partition
        return what, tuple(name for name, one in modes.items() if one.cancels and mine in (None, name))

    @property
    def jobs_are_changed(self) -> bool:
        """Whether a plugin of the site may change a job without a word as it is submitted."""
        plugins = (self.settings.get(name, "(null)") for name in ("JobSubmitPlugins", "CliFilterPlugins"))
        return any(one != "(null)" for one in plugins)

    def restarts(self, job: Job, successors: int = 0) -> Restarts:
        """How the queue starts a run of `job` again, by `restart.by` or as far as Slurm shows what it does.

        First come as many `successors` as the submission queues.
        """
        found = self._restarts(job)
        if not successors:
            return found
        ahead = f"in {plural(successors, 'job')} of its own, queued with it (`successors` in the cluster file)"
        more = f", then {found.words}" if found.words and successors < job.most_starts else ""
        return found._replace(words=ahead + more)

    def _restarts(self, job: Job) -> Restarts:
        what, modes = self._deciding
        named = job.resources.qos if what == "QOS" else job.resources.partition or self.default
        names = named.split(",") if named else [*modes]
        cancelling = [name for name in names if name in modes and modes[name].cancels]
        cancels = bool(names) and cancelling == names
        here = f"{what} {', '.join(cancelling)}"
        requeued = f"by a requeue, at least {self.requeue_seconds} s after the end of an attempt"
        if job.restart.by:
            words = "in a job of its own" if job.restart.by == "successor" else requeued
            return Restarts(job.restart.by, f"{words} (restart.by)", cancels)
        if cancels:
            return Restarts("successor", f"in a job of its own, because {_CANCELS} in {here}", cancels)
        if cancelling:
            return Restarts(None, f"{requeued}; in {here}, where {_CANCELS}, in a job of its own")
        if names and all(name in modes for name in names):
            return Restarts("requeue", requeued)
        return Restarts(None)

    def lines(self, partition: str, qos: str) -> tuple[str, ...]:
        """What a user should know of them, a line each; nothing about what Slurm has not shown."""
        said = []
        if requeue := self.settings.get("JobRequeue"):
            said.append(f"JobRequeue={requeue}: clusterctl asks for --requeue{' all the same' * (requeue == '0')}")
        where, modes = self._deciding
        name = qos if where == "QOS" else partition
        shown = {name: modes[name]} if name in modes else {} if name else modes
        for one, preemption in shown.items():
            if preemption.mode != "OFF":
                what = "cancelled, and the run goes on in a job of its own" if preemption.cancels else "not cancelled"
                grace = f", GraceTime={preemption.grace}" if preemption.grace else ""
                said.append(f"PreemptMode={preemption.mode} in {where} {one}{grace}: preempted jobs are {what}")
        if wait := self.settings.get("KillWait"):
            said.append(f"KillWait={wait} s: the time to save between SIGTERM and SIGKILL")
        return tuple(said)
