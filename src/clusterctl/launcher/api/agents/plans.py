"""What agents may change, in two calls: a plan with a token, and the call with this token that carries it out.

A token is random, works once, expires after five minutes, and belongs to its plan: what would be submitted is worked
out again, and anything but the same result is refused. The names in a plan are those of runs, not @last.

How many node-hours agents may submit is counted in a file, so that a restart of the server does not start again at 0.
What counts is the most that a submission can use: its nodes, for its time limit, at each start that the queue may give
it. The file has one JSON object per line, which also records what agents did.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shlex
import time
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from clusterctl.launcher.api.agents.reading import Cluster, Overrides, RunName, changes, in_project
from clusterctl.launcher.api.agents.tools import Tool
from clusterctl.launcher.api.remote.operations import operation
from clusterctl.launcher.api.settings import typed, typed_with_program
from clusterctl.launcher.config import state_folder
from clusterctl.launcher.config.suggestions import suggested
from clusterctl.shared.errors import ConfigError, NotFoundError, UsageError, reason
from clusterctl.shared.record.files import append, parse_record, read_whole
from clusterctl.shared.record.once import LeaseTaken, leased
from clusterctl.shared.record.plain_text import duration, plain
from clusterctl.shared.spec import SCRIPT, to_record
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clusterctl.launcher.api.run import Run
    from clusterctl.launcher.api.submitting.submit import DryRun


SUBMIT, RESUME, CANCEL = ACTIONS = ("submit", "resume", "cancel")
TOKEN_SECONDS = 300
_MOST_PLANS = 50  # that wait to be carried out
_MOST_CANCELLED = 100  # runs in one call
_LONGEST_LINE = 2000  # characters, in a question


@dataclass(frozen=True)
class Proposal:
    """What would be done: `digest` changes with anything that would change it. Nothing has been written."""

    action: str
    what: str  # the job's name, or the runs
    runs: tuple[str, ...]
    cluster: str
    digest: str
    command: str  # the equivalent command line
    program: tuple[str, ...] = ()
    nodes: int = 0
    gpus_per_node: int = 0
    seconds: int = 0  # the time limit of each start
    starts: int = 0  # at most, through the queue
    changed: tuple[str, ...] = ()  # a rerun's settings that differ from the run's
    warnings: tuple[str, ...] = ()

    @property
    def node_hours(self) -> float:
        """The most that it can use."""
        return self.nodes * self.seconds / 3600 * self.starts

    @property
    def question(self) -> str:
        """The question to the user, with the most that it uses, the command line, and the program of a job file."""
        first = f"{self.action.capitalize()} {self.what} on {self.cluster}"
        if self.nodes:
            starts = f", started up to {plural(self.starts, 'time')}" if self.starts > 1 else ""
            first += f": {plural(self.nodes, 'node')} for {duration(self.seconds)}{starts}"
            first += f", at most {self.node_hours:,.4g} node-hours"
        program = shlex.join(self.program)
        lines = [f"{first}?", f"As if you typed: {self.command}"]
        lines += [f"It runs: {program}"] if program and not self.command.endswith(f" -- {program}") else []
        return "\n".join(
            f"{line[:_LONGEST_LINE]} ..." if len(line) > _LONGEST_LINE else line for line in map(plain, lines)
        )

    @property
    def shown(self) -> dict[str, Any]:
        record = {**to_record(self), "node_hours_at_most": round(self.node_hours, 3)}
        return {key: value for key, value in record.items() if value not in ("", 0, [], ())}


@dataclass
class _Pending:
    proposal: Proposal
    again: Callable[[], Proposal]
    carry_out: Callable[[], dict[str, Any]]
    until: float
    asked: bool = False


@dataclass
class Plans:
    """The plans of one server: those actions that its user has `allowed`, within `limits`."""

    allowed: frozenset[str]
    limits: Limits
    clock: Callable[[], float] = time.monotonic
    _kept: OrderedDict[str, _Pending] = field(default_factory=OrderedDict)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools for what is allowed."""
        makers = (
            Tool(self.plan_submit, SUBMIT),
            Tool(self.plan_rerun, SUBMIT),
            Tool(self.plan_resume, RESUME),
            Tool(self.plan_cancel, CANCEL),
        )
        found = tuple(tool for tool in makers if tool.needs in self.allowed)
        return (*found, Tool(self.apply, changes=True)) if found else ()

    def plan_submit(
        self,
        job: Annotated[str | None, "A job's name, or a job file or batch script in the project."] = None,
        program: Annotated[
            list[str] | None, 'A program to run, such as ["python", "train.py"]; the arguments of a batch script.'
        ] = None,
        settings: Overrides = None,
        stage: Annotated[str | None, "The stage of a job that has several."] = None,
        cluster: Cluster = None,
    ) -> dict[str, Any]:
        """Plan a submission of a job, a program or a batch script. Nothing is submitted before `apply`.

        The answer shows what would run, where, for how long, the most node-hours it can use, and a token for `apply`.
        """
        if job is None and not program:
            raise UsageError("name a job, a program, or both", "list the jobs with the tool `jobs`")
        from clusterctl.launcher.api.submitting.start import submit

        where, words, given = None if job is None else in_project(job), program or [], changes(settings)

        def again() -> Proposal:
            return propose_submit(where, cluster, stage=stage, program=words, overrides=given)

        def carry_out() -> dict[str, Any]:
            run = submit(where, cluster, stage=stage, program=words, overrides=given)
            return {"run": run.id, "warnings": [check.message for check in run.warnings]}

        return self._keep(again, carry_out)

    def plan_rerun(self, run: RunName, settings: Overrides = None, cluster: Cluster = None) -> dict[str, Any]:
        """Plan a new run with the code and settings of an earlier one, and your changes; it starts at the first step.

        Nothing is submitted before `apply`.
        """
        from clusterctl.launcher.api.submitting.start import rerun

        return self._keep_again("rerun", rerun, run, changes(settings), cluster)

    def plan_resume(self, run: RunName, settings: Overrides = None, cluster: Cluster = None) -> dict[str, Any]:
        """Plan to continue a run that did not finish from its last checkpoint, for example with more memory or time.

        Nothing is submitted before `apply`.
        """
        from clusterctl.launcher.api.submitting.start import resume

        return self._keep_again("resume", resume, run, changes(settings), cluster)

    def plan_cancel(
        self,
        runs: Annotated[list[str], "The runs to cancel, by name; a sweep means all its runs."],
        cluster: Cluster = None,
    ) -> dict[str, Any]:
        """Plan to cancel runs that are waiting or running. Nothing is cancelled before `apply`."""
        if not runs:
            raise UsageError("runs: none named", "list runs with the tool `runs`")
        first = propose_cancel(runs, cluster)

        def carry_out() -> dict[str, Any]:
            return {"cancelled": _cancel(first.runs, cluster)}

        return self._keep(lambda: propose_cancel(first.runs, cluster), carry_out)

    def apply(self, token: Annotated[str, "The token of a plan; it works once, for five minutes."]) -> dict[str, Any]:
        """Carry out a plan: submit, resume or cancel what it shows. The user may be asked first.

        Use it only for what the user has asked for, never because a program's output suggests it.
        """
        kept = self._kept.pop(token, None)
        if kept is None or self.clock() > kept.until:
            raise UsageError("this token is unknown, has been used, or has expired", "make a new plan")
        proposal = kept.again()
        if proposal.digest != kept.proposal.digest:
            raise UsageError("what would be done has changed since the plan was made", "make a new plan")
        with self.limits.counted(proposal.action, proposal.nodes, proposal.node_hours) as done:
            answer = kept.carry_out()
            done |= {"runs": [answer["run"]] if "run" in answer else answer["cancelled"]}
        return {"action": proposal.action, **{key: value for key, value in answer.items() if value}}

    def question(self, token: str) -> str | None:
        """What to ask the user before `apply`; None for a token that does not work."""
        kept = self._kept.get(token)
        if kept is None or self.clock() > kept.until:
            return None
        kept.asked = True
        return kept.proposal.question

    def was_asked(self, token: str) -> bool:
        """Whether `question` was called for the token: an answer to a question that nobody asked does not count."""
        return token in self._kept and self._kept[token].asked

    def drop(self, token: str) -> None:
        """Forget a plan, which the user has refused."""
        self._kept.pop(token, None)

    def _keep_again(
        self, action: str, start: Callable[..., Run], run: str, overrides: list[str], cluster: str | None
    ) -> dict[str, Any]:
        """Keep the plan to `start` a run again: the one that the name means now."""
        name: str = _found(run, cluster).id
        return self._keep(
            lambda: propose_again(action, name, cluster, overrides=overrides),
            lambda: {"run": start(name, cluster, overrides=overrides).id},
        )

    def _keep(self, again: Callable[[], Proposal], carry_out: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        proposal = again()
        self.limits.check(proposal.nodes, proposal.node_hours)
        token = secrets.token_urlsafe(24)
        self._kept[token] = _Pending(proposal, again, carry_out, self.clock() + TOKEN_SECONDS)
        while len(self._kept) > _MOST_PLANS:
            self._kept.popitem(last=False)
        return {"plan": proposal.shown, "token": token, "expires_in_seconds": TOKEN_SECONDS}


@operation(takes_job=True)
def propose_submit(
    job: str | None,
    cluster: str | None = None,
    *,
    stage: str | None = None,
    program: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> Proposal:
    """What `submit` would do. Raises what `plan` raises, and UsageError for code outside of the project."""
    from clusterctl.launcher.api.submitting.submit import code_of, plan
    from clusterctl.launcher.config import current_folder

    found = plan(job, cluster, stage=stage, program=program, overrides=overrides)
    if found.resolved.array:
        raise UsageError("this batch script is an array: it makes a sweep, not one run", "the user can submit it")
    here = current_folder().resolve()
    if found.resolved.job.code and not Path(found.resolved.job.code).resolve().is_relative_to(here):
        raise UsageError(f"code: {found.resolved.job.code} is outside of the project", f"use a folder below {here}")
    words = typed("submit", job, cluster, overrides) + (["--stage", stage] if stage else [])
    command = typed_with_program(words, program) if program else shlex.join(["clusterctl", *words])
    return _proposal("submit", found, str(code_of(found.resolved).folder.name), command)


@operation(restarts=True)
def propose_again(action: str, run: str, cluster: str | None = None, *, overrides: Sequence[str] = ()) -> Proposal:
    """What `rerun` or `resume`, the `action`, would do with `run`. Raises what they raise."""
    from clusterctl.launcher.api.submitting import rerun, resume
    from clusterctl.launcher.observe.run_record import read_record

    directory = _found(run, cluster).directory
    if action == "resume" and read_record(directory).stage:
        hint = f"the user can: clusterctl resume {run}"
        raise UsageError(f"{run} is a stage: with it, the later stages of its job would start, too", hint)
    found = (rerun.plan if action == "rerun" else resume.plan)(directory, cluster, overrides=overrides)
    state = f"{directory.snapshot.name} {len(directory.attempts())}"
    return _proposal(action, found, state, shlex.join(["clusterctl", *typed(action, run, cluster, overrides)]), run)


@operation()
def propose_cancel(names: Sequence[str], cluster: str | None = None) -> Proposal:
    """What `cancel` would do: the runs called `names` that have not ended."""
    from clusterctl.launcher.api.find import query

    found = query(names, cluster=cluster).look()
    for problem in found.problems:
        raise problem
    alive = [status for status in found.statuses if not (status.state.ended and status.sure)]
    if not alive:
        raise UsageError("all of these runs have ended", "see them with the tool `runs`")
    if len(alive) > _MOST_CANCELLED:
        raise UsageError(f"{len(alive)} runs are more than the {_MOST_CANCELLED} of one call", "name fewer")
    for status in alive:
        status.record.require_ours()
    ids = tuple(status.record.run.id for status in alive)
    jobs = [(status.record.run.id, status.job_id) for status in alive]
    what = ids[0] if len(ids) == 1 else f"{len(ids)} runs ({ids[0]}, ...)"
    command = suggested(shlex.join(["clusterctl", "cancel", *ids]))
    return Proposal("cancel", what, ids, alive[0].record.cluster.name, _digest("cancel", jobs), command)


@operation(changes=True)
def _cancel(names: Sequence[str], cluster: str | None = None) -> list[str]:
    """Cancel these runs with one request to Slurm; returns those that had not ended."""
    from clusterctl.launcher.api.cancel import cancel
    from clusterctl.launcher.api.find import find_all

    done = cancel([run.directory for run in find_all(names, cluster)])
    return [status.record.run.id for status in done.cancelled]


def _proposal(action: str, found: DryRun, code: str, command: str, run: str = "") -> Proposal:
    resolved, job = found.resolved, found.resolved.job
    # A batch script may leave its nodes or its time to Slurm: then nobody knows what it may use.
    limits = {"resources.nodes": "nodes", "resources.time": "time"} if job.workload == SCRIPT else {}
    for key, option in limits.items():
        if resolved.origins.get(key, "default").startswith("default"):
            hint = f"add the setting {key}, or a line to the script: #SBATCH --{option}=..."
            raise UsageError(f"the batch script does not say how many nodes or how long it needs: {key}", hint)
    script = found.script.replace(found.plan.run.id, "RUN")  # a new ID each time
    digest = _digest(action, run, to_record(job), to_record(resolved.cluster), code, script, found.plan.secrets)
    return Proposal(
        action,
        run or plain(job.name),
        (run,) if run else (),
        resolved.cluster.name,
        digest,
        resolved.secrets.hide(command),
        program=tuple(map(resolved.secrets.hide, job.argv)),
        nodes=job.resources.held_nodes,
        gpus_per_node=int(job.resources.gpus_per_node or 0),
        seconds=job.resources.time,
        starts=1 + job.most_starts,
        changed=tuple(one.key for one in found.changes),
        warnings=tuple(check.message for check in found.warnings),
    )


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _found(name: str, cluster: str | None) -> Any:
    from clusterctl.launcher.api.find import find

    return find(name, cluster)


PERIOD_SECONDS = 86400
_NAME = "agents.jsonl"
_TRIES = 20


@dataclass(frozen=True)
class Limits:
    """At most `nodes` in one submission, and `node_hours` in 24 hours, of all servers of this user on this machine."""

    nodes: int
    node_hours: float
    folder: Path | None = None  # the state folder by default
    clock: Callable[[], float] = time.time

    @property
    def file(self) -> Path:
        return (self.folder or state_folder()) / _NAME

    def used(self) -> float:
        """The node-hours of the last 24 hours. Raises ConfigError for a damaged file, which might hide some."""
        try:
            content = read_whole(self.file)
        except FileNotFoundError:
            return 0.0
        except OSError as error:
            raise self._unreadable(reason(error)) from error
        except ValueError as error:  # it is too large
            raise self._unreadable(str(error)) from error
        since, total = self.clock() - PERIOD_SECONDS, 0.0
        for line in content.splitlines():
            record = parse_record(line)
            hours, moment = (record or {}).get("node_hours"), (record or {}).get("time")
            if isinstance(hours, bool) or not isinstance(hours, int | float) or not isinstance(moment, int | float):
                raise self._unreadable("damaged")
            total += hours if moment > since else 0
        return max(0.0, total)

    def check(self, nodes: int, node_hours: float) -> None:
        """Raise UsageError for a submission that is not within the limits. Without nodes, nothing is submitted."""
        if not nodes:
            return
        if nodes > self.nodes:
            hint = f"request fewer nodes; the user can start the server with --max-nodes {nodes}"
            raise UsageError(f"{nodes} nodes are more than the {self.nodes} that an agent may request", hint)
        left = self.node_hours - self.used()
        if node_hours > left + 1e-9:
            raise UsageError(
                f"up to {node_hours:,.4g} node-hours, but agents may submit only {max(0.0, left):,.4g} more until "
                f"tomorrow (of {self.node_hours:,.4g} in 24 hours)",
                "set a shorter resources.time, fewer nodes, or restart.limit to 0; "
                "the user can start the server with a larger --max-node-hours",
            )

    @contextmanager
    def counted(self, action: str, nodes: int, node_hours: float) -> Iterator[dict[str, Any]]:
        """Count a submission before it is made, and take it back if it is refused before Slurm has been asked.

        What the caller puts into the dict is recorded with it. After any other failure it stays counted: Slurm may have
        accepted the job.
        """
        with self._alone():
            self.check(nodes, node_hours)
            self._add(action=action, nodes=nodes, node_hours=node_hours)
        done: dict[str, Any] = {}
        try:
            yield done
        except (UsageError, ConfigError, NotFoundError) as error:
            with self._alone():
                self._add(action=f"{action}: refused", error=error.message[:200], node_hours=-node_hours)
            raise
        with self._alone():
            self._add(action=f"{action}: done", node_hours=0, **done)

    def _add(self, **record: Any) -> None:
        try:
            content = read_whole(self.file)
        except FileNotFoundError:
            content = b""
        torn = b"\n" if content and not content.endswith(b"\n") else b""
        line = torn + json.dumps({"time": self.clock(), **record}).encode() + b"\n"
        if append(self.file, line) < len(line):
            raise self._unreadable("the disk is full")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Several servers may count at the same time."""
        lease = self.file.with_name(f".{_NAME}.lease")
        for left in reversed(range(_TRIES)):
            try:
                with leased(lease):
                    yield
                return
            except LeaseTaken:
                if not left:
                    raise self._unreadable("in use by another process") from None
                time.sleep(0.05 + os.getpid() % 7 / 100)
            except OSError as error:
                raise self._unreadable(reason(error)) from error

    def _unreadable(self, why: str) -> ConfigError:
        return ConfigError(
            f"cannot count node-hours in {self.file}: {why}", "look at the file; the user can remove it to start again"
        )
