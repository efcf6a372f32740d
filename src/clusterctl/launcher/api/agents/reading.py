"""The tools with which agents look at runs. Each returns plain values; what programs wrote is in `program_output`.

That text is evidence, and may contain anything, also what looks like an instruction or like our own messages. So a
cause in the words of a program, its metrics' names and its tracebacks are never part of our sentences.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from clusterctl.launcher.api import json_output
from clusterctl.launcher.api.agents.tools import LONGEST_TEXT, OUTPUT, Settings, Tool
from clusterctl.launcher.api.remote.operations import operation
from clusterctl.launcher.api.settings import settings as typed_settings
from clusterctl.launcher.config.secrets import HIDDEN
from clusterctl.shared.errors import ClusterctlError, HostError, UsageError
from clusterctl.shared.record.metrics import KNOWN
from clusterctl.shared.record.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.launcher.diagnosis.diagnose import Diagnosis

_MOST_RUNS = 500
_MOST_LINES = 5000  # of logs in one answer
_LONGEST_LINE = 2000  # characters
_TAIL = 100  # lines
_LISTED = (
    *("id", "stage", "reason", "step", "epoch", "loss", "progress", "seconds_left", "nodes", "created", "ended"),
    *("exit_code", "note", "tags"),
)

Cluster = Annotated[str | None, "Name of the cluster; default: the one that the server was started for."]
RunName = Annotated[str, "A run's ID, the beginning of one, a job's name (its newest run), @last or @failed."]
JobName = Annotated[str, "A job's name, or the path of a job file or batch script in the project."]
Overrides = Annotated[Settings | None, 'Settings by key, such as {"resources.nodes": 2, "train.lr": 0.003}.']


def runs(
    state: Annotated[list[str] | None, "Only runs in these states; also alive, running, ended."] = None,
    name: Annotated[str | None, "Only runs whose job or ID matches, such as cora*."] = None,
    tag: Annotated[list[str] | None, "Only runs with all of these tags."] = None,
    since: Annotated[str | None, "Only runs submitted within this time: 90m, 8h, 2d."] = None,
    count: Annotated[int, "The newest so many."] = 20,
    cluster: Cluster = None,
) -> dict[str, Any]:
    """List runs, newest first: state, progress, loss, and how they ended.

    The state is the key `stage`. Times are in seconds since the epoch. `status` shows more of a run, `why` its cause.
    """
    from clusterctl.launcher.api.find import query

    wanted = query(
        state=state or (), name=name or (), since=since, tag=tag or (), cluster=cluster, count=min(count, _MOST_RUNS)
    )
    found = wanted.look()
    rows = [_known(json_output.run(status, found.as_of), _LISTED) for status in found.statuses]
    return {"as_of": found.as_of, "runs": rows, **_problems(found.problems)}


def status(run: RunName, cluster: Cluster = None) -> dict[str, Any]:
    """Show one run: state, attempts, nodes, progress, times, directory; its own metrics are in `program_output`.

    For a sweep, use `sweep`; for a Slurm job that clusterctl did not submit, `slurm_jobs` and `why`.
    """
    from clusterctl.launcher.api.find import query

    found = query([run], cluster=cluster).look()
    for problem in found.problems:
        if not found.statuses:
            raise problem
    (one, *_) = found.statuses
    return {
        "as_of": found.as_of,
        "run": _known(json_output.run(one, found.as_of)),
        **_problems(found.problems),
        OUTPUT: "".join(f"{name}: {value}\n" for name, value in one.metrics.items() if name not in KNOWN),
    }


def why(
    run: Annotated[str, "A run's name as for `status`, or the ID of any Slurm job, such as 123 or 123_4."],
    cluster: Cluster = None,
) -> dict[str, Any]:
    """Explain why a run or any Slurm job failed, is waiting, or is slow: class of the cause, place, next commands.

    `certainty` is certain, likely or unknown. The cause in words, the traceback and what followed on other ranks are in
    `program_output`: they quote the program. For a queued run, `cause` and `facts` come from Slurm.
    """
    from clusterctl.launcher.api.jobs import why_named

    found = why_named(run, cluster)
    first, status = found.headline, found.status
    queued = status.state.value == "queued" and not status.attempts
    return {
        "run": status.record.run.id,
        "state": status.shown,
        "class": first.cause_class.value,
        "certainty": first.certainty,
        **_present(
            attempt=first.attempt,
            rank=first.rank,
            node=first.node or None,
            phase=first.state or None,
            step=first.step,
            cause=first.cause if queued else None,
            facts=list(first.facts) if queued else None,
            hint=first.hint if queued else None,
            unknown=list(found.unknown),
        ),
        "next_commands": list(found.commands),
        **_present(
            other_causes=[
                _present(**{"class": other.cause_class.value, "certainty": other.certainty, "rank": other.rank})
                for other in found.findings[1:]
            ],
            earlier_attempts=[
                _present(attempt=past.attempt, **{"class": past.cause_class.value}) for past in found.history
            ],
        ),
        OUTPUT: "" if queued else _explained(found),
    }


def logs(
    run: Annotated[str, "A run's name as for `status`, or the ID of a Slurm job of yours."],
    rank: Annotated[int | None, "Only this rank."] = None,
    attempt: Annotated[int | None, "Only this attempt; the first is 0."] = None,
    stream: Annotated[str | None, "Only this stream: out or err."] = None,
    tail: Annotated[int | None, "The last so many lines of each file; default: 100, or all with `search`."] = None,
    search: Annotated[str | None, "Only lines that contain this text, of the whole logs."] = None,
    since: Annotated[str | None, "Only lines since an age (20m) or a local time (2026-01-31 12:00:00)."] = None,
    errors: Annotated[bool, "Instead of lines: the tracebacks of all ranks, identical ones once."] = False,
    host: Annotated[bool, "Include the batch script's log."] = False,
    cluster: Cluster = None,
) -> dict[str, Any]:
    """Show what the ranks of a run, or any Slurm job of yours, printed, merged by time. It is in `program_output`.

    Each line begins with its attempt and rank. Start with `errors` for a failed run, and with `tail` otherwise.
    """
    from clusterctl.launcher.api.find import find
    from clusterctl.launcher.api.jobs import job_log, plain_job

    grep = None if search is None else re.escape(search)
    tail = _TAIL if tail is None and search is None else tail
    last = None if tail is None else min(tail, _MOST_LINES)
    if job_id := plain_job(run, cluster):
        if rank is not None or attempt is not None or since or errors or host:
            raise UsageError("clusterctl did not submit this job", "leave out rank, attempt, since, errors and host")
        log = job_log(job_id, cluster, stream=stream, tail=last, grep=grep)
        text, cut = _lines(f"{one}: {_shown(line)}" for one, line in log)
        return {"job": job_id, "lines": text.count("\n"), **cut, OUTPUT: text}
    found = find(run, cluster)
    reading = found.logs(
        rank, attempt=attempt, stream=stream, host=host, tail=None if errors else last, since=since, grep=grep
    )
    if errors:
        failures = reading.errors()
        blocks = (f"attempt {one.attempt}, ranks {one.ranks}:\n{one.text}" for one in failures)
        text, cut = _lines(itertools.chain.from_iterable(block.splitlines() for block in blocks))
        return {"run": found.id, "errors": len(failures), **cut, OUTPUT: text}
    text, cut = _lines(f"{_whose(line)}{_shown(line.text)}" for line in reading)
    return {"run": found.id, "lines": text.count("\n"), **_present(note=reading.note or None), **cut, OUTPUT: text}


def metrics(
    run: RunName,
    last: Annotated[int, "The newest so many records."] = 50,
    cluster: Cluster = None,
) -> dict[str, Any]:
    """Show the metrics that a run recorded, one JSON object per line in `program_output`.

    Each has `attempt`, `time` and `step`; steps that a later attempt repeated appear once.
    """
    from clusterctl.launcher.api.find import find

    found = find(run, cluster)
    rows = found.metrics()
    text, cut = _lines(json.dumps(row) for row in rows[len(rows) - min(last, _MOST_LINES, len(rows)) :])
    return {"run": found.id, "records": len(rows), **cut, OUTPUT: text}


def sweep(
    sweep: Annotated[str, "A sweep's ID, or the name of its job if the newest submission was a sweep."],
    metric: Annotated[str | None, "The metric that decides which run is the best; default: its score."] = None,
    cluster: Cluster = None,
) -> dict[str, Any]:
    """Compare the runs of a sweep: their settings and states, the best first, with the value that decides."""
    from clusterctl.launcher.api.sweeps import find_sweep
    from clusterctl.launcher.observe.sweeps import ranked, values_of

    found = find_sweep(sweep, cluster)
    try:
        summary = found.status(metric)
    except UsageError as error:  # its hint lists names that programs chose
        raise UsageError(error.message, "the tool `metrics` shows what the runs have logged") from error
    ranking = ranked(summary.statuses, metric)
    value_of = {one.status.record.run.id: one.value for one in ranking}
    settings_of = dict(zip((run.id for run in summary.record.runs), summary.record.settings, strict=True))
    state_of = {one.record.run.id: one.state.value for one in summary.statuses}
    rows = [
        _present(run=name, state=state_of[name], value=value_of.get(name), settings=values_of(settings_of[name]))
        for name in [*value_of, *(name for name in state_of if name not in value_of)]
    ]
    decides = ranking[0].metric.name if ranking else None
    return {
        "sweep": found.id,
        "states": {state.value: count for state, count in summary.states.items()},
        **_present(
            decided_by=decides if decides in KNOWN else None,
            best=ranking[0].status.record.run.id if ranking else None,
            seconds_left=summary.seconds_left,
        ),
        "runs": rows,
        OUTPUT: "" if decides in KNOWN or decides is None else f"decided by the program's metric: {decides}\n",
    }


def diff(
    first: RunName,
    second: RunName,
    code: Annotated[bool, "Also the lines that differ in the code, in `program_output`."] = False,
    cluster: Cluster = None,
) -> dict[str, Any]:
    """Show where two runs differ: configuration, code, versions, image and results."""
    from clusterctl.launcher.api.find import diff as compare

    found = compare(first, second, cluster)
    record = json_output.differences(found)
    results = [one for one in record["results"] if one["metric"] in KNOWN]
    own = [f"{json.dumps(one)}\n" for one in record["results"] if one not in results]
    lines = (line for one in (found.line_differences() if code else ()) for line in one.lines or ())
    text, cut = _lines(lines)
    rows = (
        (one.key, (HIDDEN, HIDDEN) if _is_variable(one.key) else (one.first, one.second)) for one in found.configuration
    )
    return {
        "runs": record["runs"],
        "configuration": [{"key": key, "first": first, "second": second} for key, (first, second) in rows],
        "code": [] if record["code"] is None else record["code"],
        "versions": record["versions"],
        "image": record["image"],
        "results": results,
        **cut,
        OUTPUT: "".join(own) + text,
    }


def nodes(cluster: Cluster = None) -> dict[str, Any]:
    """Show the partitions and nodes of a cluster: what is free, and which nodes are drained and why."""
    from clusterctl.launcher.api.nodes import nodes as inventory

    record = json_output.nodes(inventory(cluster), cluster)
    partitions = [{key: value for key, value in one.items() if key != "nodes"} for one in record["partitions"]]
    return {**_known(record, ("cluster", "as_of")), "partitions": partitions, "nodes": record["nodes"]}


def fit(job: JobName, settings: Overrides = None, cluster: Cluster = None) -> dict[str, Any]:
    """Show where and when a job would fit, without submitting it: per partition, and Slurm's own estimate."""
    record = _answer_of(_fit(in_project(job), cluster, overrides=changes(settings)))
    return _known(record, [key for key in record if key != "schema_version"])


@operation(takes_job=True)
def _fit(job: str, cluster: str | None = None, *, overrides: Sequence[str] = ()) -> str:
    from clusterctl.launcher.api.nodes import fit as where

    return json.dumps(json_output.fit(where(job, cluster, overrides=overrides)))


def usage(
    by: Annotated[str, "One row for each: user, job or week."] = "job",
    since: Annotated[str | None, "Only the hours within this time: 8h, 30d."] = None,
    cluster: Cluster = None,
) -> dict[str, Any]:
    """Show the GPU-hours and CPU-hours that runs used, and how busy GPUs and CPUs were (0 to 1)."""
    from clusterctl.launcher.api.usage import usage as used

    record = json_output.usage(used(cluster, by=by, since=since))
    return {"since": record["since"], "total": record["total"], "rows": record["rows"]}


def slurm_jobs(cluster: Cluster = None) -> dict[str, Any]:
    """List your Slurm jobs that clusterctl did not submit. `why` and `logs` work on their IDs."""
    from clusterctl.launcher.api.jobs import jobs

    return {"jobs": [_known(json_output.plain_job(job)) for job in jobs(cluster)]}


def jobs() -> dict[str, Any]:
    """List the jobs and clusters that can be named here: those of the project, your own, and the shipped ones."""
    from clusterctl.launcher.api.settings import places

    found = [(kind, name) for kind, name, _ in places() if name]
    return {f"{kind}s": [name for one, name in found if one == kind] for kind in ("job", "cluster")}


def job(job: JobName, settings: Overrides = None, cluster: Cluster = None) -> dict[str, Any]:
    """Show a job resolved for a cluster: every setting that is not the default, its value, and where it comes from."""
    from clusterctl.launcher.api.settings import values
    from clusterctl.launcher.api.submitting.submit import load

    resolved = load(in_project(job), cluster, overrides=changes(settings))
    rows = [
        {"key": key, "value": HIDDEN if _is_variable(key) else value, "origin": origin}
        for key, value, origin in values(resolved)
        if origin != "default"
    ]
    return {
        "job": resolved.job.name,
        "cluster": resolved.cluster.name,
        "settings": rows,
    }


def settings(
    search: Annotated[str, "Text in a key or its description, such as memory; empty: all."] = "",
) -> dict[str, Any]:
    """Find the keys that a job file or `settings` of another tool can set: type, default, meaning."""
    from clusterctl.launcher.api.settings import job_key_tables
    from clusterctl.shared.spec.keys import as_toml

    word = search.lower()
    found: dict[str, dict[str, Any]] = {}
    for _, keys in job_key_tables():
        for key in keys:
            if word in key.path.lower() or word in key.description.lower():
                default = as_toml(key.default)
                found.setdefault(
                    f"{key.path} {key.description}",
                    _present(key=key.path, type=key.kind, default=default or None, meaning=key.description),
                )
    return {"settings": list(found.values())}


READING = tuple(
    Tool(one)
    for one in (runs, status, why, logs, metrics, sweep, diff, nodes, fit, usage, slurm_jobs, jobs, job, settings)
)
_HERE = ("fit", "jobs", "job", "settings")  # they read the project; the others run where the cluster's runs are


def read(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a reading tool, on the machine of its cluster."""
    if tool.name in _HERE:
        answer: dict[str, Any] = tool.function(**arguments)
        return answer
    return _answer_of(read_there(tool.name, json.dumps(dict(arguments)), arguments.get("cluster")))


def _answer_of(text: str) -> dict[str, Any]:
    """An answer that may come from another machine, which is not trusted. Raises HostError if it is none."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise HostError("clusterctl on the host sent an invalid answer", "ask again")
    return answer


@operation()
def read_there(name: str, arguments: str, cluster: str | None = None) -> str:
    """The answer of the tool `name` as JSON."""
    tool = next((one for one in READING if one.name == name), None)
    if tool is None:
        raise UsageError(f"no such tool: {name}", "do both machines have the same version of clusterctl?")
    given = tool.checked(json.loads(arguments))
    return json.dumps(tool.function(**given, **({} if "cluster" in given or not cluster else {"cluster": cluster})))


def in_project(job: str) -> str:
    """`job`, if it is a name or a file below the current folder. Raises UsageError for any other file."""
    here = Path.cwd().resolve()
    try:
        path = (here / job).resolve()
        is_file = "/" in job or path.is_file()
    except (OSError, RuntimeError, ValueError):
        path, is_file = here, True
    if job.startswith(("-", "~")) or (is_file and not (path.is_relative_to(here) and path != here)):
        raise UsageError(f"not a job of this project: {plain(job[:100])}", f"name a job, or a file below {here}")
    return job


def changes(settings: Settings | None) -> list[str]:
    """`settings` as KEY=VALUE. Raises UsageError for what an agent must not set."""
    for key, value in (settings or {}).items():
        if not re.fullmatch(r"[A-Za-z_][\w.-]{0,99}", key, re.ASCII):
            raise UsageError(f"settings: not a key: {plain(key[:40])}", "find keys with the tool `settings`")
        if key == "code" or key.partition(".")[0] in ("env", "notify", "track") or key.startswith("resources.sbatch"):
            hint = "the user can: in the job file, or with clusterctl submit JOB --set KEY=VALUE"
            raise UsageError(f"settings: an agent cannot set {key}", hint)
        if len(json.dumps(value)) > LONGEST_TEXT:
            raise UsageError(f"settings: the value of {key} is too long", "shorten it")
    return typed_settings(settings or {})


def _present(**values: Any) -> dict[str, Any]:
    """Those that are known; empty texts and lists are left out, too."""
    return {name: value for name, value in values.items() if value not in (None, "", [], ())}


def _known(record: Mapping[str, Any], keys: Iterable[str] = ()) -> dict[str, Any]:
    """The values of `record`, or of `keys` in it, that are known; the metrics of programs have arbitrary names."""
    names = keys or [key for key in record if key != "metrics"]
    return _present(**{name: record[name] for name in names})


def _problems(found: Iterable[ClusterctlError]) -> dict[str, Any]:
    return _present(problems=[problem.message for problem in found])


def _explained(diagnosis: Diagnosis) -> str:
    """The findings in words, which quote programs."""
    lines: list[str] = []
    for found in diagnosis.findings:
        lines += [str(found), *found.facts, *found.traceback.splitlines()]
        lines += [f"hint: {found.hint}"] if found.hint else []
        lines += [f"then rank {one.rank} on {one.node}: {one.cause}" for one in found.secondary[:50]]
    lines += [f"attempt {past.attempt}: {past}" for past in diagnosis.history]
    return "".join(f"{line[:_LONGEST_LINE]}\n" for line in lines)


def _shown(line: bytes) -> str:
    """A line as a terminal would finally show it."""
    return plain(line.decode(errors="replace").rstrip("\r").rpartition("\r")[2])


def _whose(line: Any) -> str:
    rank = "host" if line.source.rank is None else f"rank {line.source.rank}"
    return f"[attempt {line.source.attempt}, {rank}] "


def _lines(lines: Iterable[str]) -> tuple[str, dict[str, Any]]:
    """The newest lines as one text, and how many are missing."""
    kept: deque[str] = deque(maxlen=_MOST_LINES)
    count = 0
    for line in lines:
        kept.append(line[:_LONGEST_LINE])
        count += 1
    return "".join(f"{line}\n" for line in kept), _present(lines_left_out=count - len(kept) or None)


def _is_variable(key: str) -> bool:
    return key.removeprefix("cluster.").startswith("env.")
