"""Run directories damaged at random: any file of a run, any kind of damage, determined by a seed."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterctl.shared.record.layout import RUN_FORMAT
from clusterctl.shared.spec import Cluster, Job, Resources, SyntheticTrain, to_record

START = 1_767_323_045.0  # 2026-01-02T03:04:05Z
DRAWS = (
    "\x1b]52;c;b3duZWQ=\x07",  # OSC 52: writes to the clipboard
    "\x1b]8;;http://example.org\x1b\\link\x1b]8;;\x1b\\",  # OSC 8: a link
    "\x1b]0;title\x07",
    "\x1b[2J\x1b[31mred",
    "\x9b2J",
    "\x9d52;c;b3duZWQ=\x9c",
    "\u202eesrever\u2066",
    "a\nb\r\x08\u2028c\x00",
    "\ud800",
)
WRONG: tuple[Any, ...] = (
    *DRAWS,
    *(None, True, False, "", "x", " ", "-1", "9" * 400, "٣", "²", "--user=root", "../../etc", "x" * 5000),
    *(0, -1, 1, 2**31, 2**63, 10**400, -(10**400)),
    *(0.5, -1e308, 1e308, 5e-324, float("nan"), float("inf"), float("-inf")),
    *([], {}, [[]], [None], {"": None}, [{}], {"\x1b[2J": 1}, [1e308, "x", {}]),
)
EXTREMES = (
    (1e308, -1e308),
    (5e-324, -5e-324),
    (2**63, -(2**63)),
    (float("inf"), float("-inf"), float("nan"), 1.0),
    (0, 0.0, -0.0),
)
RAW = (
    b"",
    b"\x00",
    b"\xff\xfe\x00",
    b"null",
    b"[]",
    b"5",
    b'"text"',
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"9" * 5000,
    b"{" + b'"time": ' + b"9" * 5000 + b"}",
    bytes(range(256)) * 20,
    b"x" * 100_000,
    b"\xef\xbb\xbf{}",
)
FROZEN = 'Current thread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n'
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: no\n'


def _event(rank: int, name: str, seconds: float, **more: Any) -> dict[str, Any]:
    return {"event": name, "time": START + seconds, "rank": rank, **more}


def _attempt(number: int, ranks: int) -> dict[str, Any]:
    """The files of an attempt with one rank per node."""
    folder, begin = f"attempts/{number}", 100.0 * number
    files: dict[str, Any] = {
        "host.json": {
            "attempt": number,
            "job_id": "7",
            "restart_count": number,
            "nodes": "node[1-2]",
            "start": START + begin,
            "end": START + begin + 90,
            "exit_code": 1,
            "signal": "TERM",
            "requeued": not number,
            "refused": "no-progress",
            "disk_full": False,
        },
        "host.log": "srun: error: node2: task 1: Exited with exit code 1\n",
        "origin.json": {"checkpoint": "0-10", "time": START + begin},
        "hang.json": {
            "time": START + begin + 60,
            "seen": 0,
            "phase": "training",
            "still_seconds": 30.0,
            "suspects": [1],
            "how": "silent",
            "beats": {"1": {"time": START}},
        },
        "hang-report.json": {
            "time": START + begin + 60,
            "seen": 0,
            "phase": "training",
            "still_seconds": 1805.0,
            "suspects": [],
            "how": "idle",
            "beats": {"1": {"time": START, "idle": 1805.0}},
        },
        "metrics.jsonl": [
            {
                "time": START + begin + 10 + step,
                "step": step,
                "steps": 400,
                "epoch": step // 10,
                "epochs": 40,
                "loss": 2.0 / (1 + step),
                "learning_rate": 0.1,
                "seconds": 0.1,
                "load_seconds": 0.01,
                "examples_per_second": 100.0,
                "val_accuracy": 0.5,
                "val_correct": 5,
                "val_examples": 10,
                "classes": 7,
                "mse": 1.0,
            }
            for step in range(1, 13)
        ],
        "telemetry/node1.jsonl": [
            {
                "time": START + begin + seconds,
                "cpu": 1.0,
                "cpus": 2,
                "memory": 10**9,
                "memory_limit": 10**10,
                "disk_read": 1.0,
                "gpus": [{"index": 0, "utilisation": 50.0, "memory": 10**9}],
                "ranks": {
                    "0": {"step": 3, "phase": "training", "step_seconds": 0.1, "busy_seconds": 0.1, "idle": 480.0}
                },
            }
            for seconds in (1, 2, 3)
        ],
        "profile/rank_00000.json": "{}",
        "collectives/rank_0": "x",
    }
    for rank in range(ranks):
        name = f"rank_{rank:05}"
        files |= {
            f"nodes/{rank:05}.events.jsonl": [
                _event(rank, "began", begin, host=f"node{rank + 1}", node=f"node{rank + 1}", pid=7),
                *(
                    _event(rank, "stage", begin + seconds, stage=stage)
                    for seconds, stage in enumerate(("importing", "rendezvous", "loading", "training", "evaluating"))
                ),
                _event(rank, "frozen", begin + 60, stacks=FROZEN),
                _event(rank, "writer", begin + 60),
                _event(rank, "hang", begin + 60, stacks='Thread MainThread:\n  File "a.py", line 1, in f\n'),
                _event(rank, "exception", begin + 61, type="ValueError", message="no", traceback=TRACEBACK, hint="h"),
                _event(rank, "superseded", begin + 62),
                _event(rank, "exit", begin + 63, code=1),
            ],
            f"events/{name}.jsonl": [_event(rank, "exit", begin + 64, code=1)],
            f"nodes/{rank:05}.beats": {
                "rank": rank,
                "time": START + begin + 50,
                "phase": "training",
                "since": START + begin + 5,
                "step": 12,
                "step_time": START + begin + 20,
                "step_seconds": 0.1,
                "slow_seconds": 0.2,
                "busy_seconds": 0.1,
                "waiting": None,
                "pid": 7,
                "host": f"node{rank + 1}",
                "idle": 480.0,
            },
            f"logs/{name}.out": f"2026-01-02T03:04:06.000Z same\n2026-01-02 03:04:07,5 of {rank}\nno time\n",
            f"logs/{name}.err": f"2026-01-02T03:04:08.000Z first\n{TRACEBACK}",
        }
    return {f"{folder}/{name}": content for name, content in files.items()}


def healthy(runs: Path, run_id: str) -> dict[str, Any]:
    """Every file that a run may have: dicts become JSON, lists JSON lines, strings text."""
    resources = Resources(nodes=2, tasks_per_node=1, time=1200)
    job = Job(name=run_id.rsplit("-", 3)[0], workload="synthetic", resources=resources, train=SyntheticTrain())
    return {
        "run.json": {
            "schema_version": RUN_FORMAT,
            "id": run_id,
            "created": START - 10,
            "argv": ["submit", "cora"],
            "versions": {"clusterctl": "0.1.0", "python": "3.11"},
            "git": {"commit": "abc", "dirty": True},
            "origins": {"name": "job file", "resources.nodes": "--set"},
            "resumes": [{"time": START + 95, "attempts": 1, "job_id": "6", "argv": ["resume"]}],
            "job": to_record(job),
            "cluster": to_record(Cluster(name="site", runs=str(runs))),
        },
        "submission.json": {"job_id": "7", "time": START - 5},
        "cancel.json": {"time": START + 150, "by": "ann"},
        "finished.json": {"attempt": 1, "time": START + 190},
        "requeue.json": {"attempt": 0, "reason": "warned", "time": START + 50, "step": 10, "progress": True},
        "accounting.json": {
            "time": START + 300,
            "job_id": "7",
            "lines": [
                {"job_id": "7", "step": "", "state": "FAILED", "by": "", "exit_code": 1, "signal": 0, "nodes": "node1"}
            ],
        },
        "slurm.log": "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-01-02T03:05:00 DUE TO TIME LIMIT ***\n",
        "script.sh": "#!/bin/bash\n",
        "code/train.py": "",
        "submissions/0/run.json": {"schema_version": RUN_FORMAT},
        **_attempt(0, ranks=1),
        **_attempt(1, ranks=2),
    }


def write(run: Path, files: dict[str, Any]) -> None:
    for folder in {(run / name).parent for name in files}:
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (run / name).write_bytes(as_bytes(content))


def as_bytes(content: Any) -> bytes:
    if isinstance(content, list):
        return b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in content)
    if isinstance(content, dict):
        return json.dumps(content).encode()
    return content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")


def damaged(seed: int, run: Path) -> str:
    """Write a damaged run to `run`, and return a description of the damage."""
    dice = random.Random(seed)
    files = healthy(run.parent, run.name)
    for name in ("finished.json", "cancel.json", "requeue.json", "accounting.json", "attempts/1/hang.json"):
        if dice.random() < 0.7:  # otherwise every run would have finished
            del files[name]
    if dice.random() < 0.4:  # it is still running
        for name in ("end", "exit_code"):
            del files["attempts/1/host.json"][name]
    if dice.random() < 0.5:  # a single attempt that failed
        files = {name: content for name, content in files.items() if not name.startswith("attempts/0/")}
        files = {name.replace("attempts/1/", "attempts/0/"): content for name, content in files.items()}
        del files["run.json"]["resumes"]
    done = [_damage_content(dice, files) for _ in range(dice.randint(0, 4))]
    write(run, files)
    done += [_damage_place(dice, run) for _ in range(dice.choice((0, 0, 1, 1, 2)) if done else 1)]
    return f"seed {seed}: " + "; ".join(done)


def _damage_content(dice: random.Random, files: dict[str, Any]) -> str:
    # run.json is one file among many, but every command reads it
    name = "run.json" if dice.random() < 0.15 else dice.choice(list(files))
    content = files[name]
    if isinstance(content, dict) and dice.random() < 0.85:
        files[name], what = _changed(dice, copy.deepcopy(content))
    elif isinstance(content, list) and content and dice.random() < 0.85:
        place = dice.randrange(len(content))
        line = content[place]
        if name.endswith("metrics.jsonl") and dice.random() < 0.5:
            swinging, values = dice.choice(list(line) if isinstance(line, dict) else ["loss"]), dice.choice(EXTREMES)
            for each in content:
                if isinstance(each, dict):
                    each[swinging] = dice.choice(values)
            what = f"every {swinging} is one of {values}"
        elif isinstance(line, dict) and dice.random() < 0.8:
            changed, what = _changed(dice, copy.deepcopy(line))
            content[place : place + dice.randint(0, 1)] = [changed] * dice.choice((1, 1, 1, 50))
        else:
            content[place], what = _torn(dice, as_bytes([line]))
    else:
        files[name], what = _torn(dice, as_bytes(content))
    return f"{name}: {what}"


def _changed(dice: random.Random, table: dict[str, Any]) -> tuple[Any, str]:
    """`table` with one value, at any depth, that is wrong, missing or added."""
    keys: list[str] = []
    inner: Any = table
    while True:
        key: Any = dice.choice(list(inner) or ["x"]) if isinstance(inner, dict) else dice.randrange(len(inner))
        keys.append(str(key))
        below = inner[key] if isinstance(inner, list) else inner.get(key)
        if isinstance(below, dict | list) and below and dice.random() < 0.85:
            inner = below
            continue
        break
    match dice.randrange(10):
        case 0 if below is not None:
            del inner[key]
            return table, f"without {'.'.join(keys)}"
        case 1 if isinstance(inner, dict):
            name = dice.choice((*DRAWS[:-1], "later", "٣", "9" * 400))
            inner[name] = dice.choice(WRONG)
            return table, f"{'.'.join(keys[:-1])} has {name!r:.40}"
    wrong = dice.choice(WRONG)
    if isinstance(wrong, str) and wrong in DRAWS and isinstance(below, str):
        wrong = dice.choice((wrong, below + wrong, wrong + below))
    inner[key] = wrong
    return table, f"{'.'.join(keys)} = {wrong!r:.40}"


def _torn(dice: random.Random, content: bytes) -> tuple[bytes, str]:
    match dice.randrange(4):
        case 0:
            end = dice.randint(0, len(content))
            return content[:end], f"cut off at {end}"
        case 1:
            place, draws = dice.randint(0, len(content)), dice.choice(DRAWS).encode("utf-8", "surrogatepass")
            return content[:place] + draws + content[place:], f"{draws!r} at {place}"
        case 2:
            place = dice.randint(0, len(content))
            return content[:place] + dice.randbytes(dice.randint(1, 64)) + content[place:], f"noise at {place}"
    raw = dice.choice(RAW)
    return raw, f"{raw[:20]!r} of {len(raw)} bytes"


def _damage_place(dice: random.Random, run: Path) -> str:
    """Replace a file or a folder by something else, or put something beside it."""
    everything = [path for path in sorted(run.rglob("*")) if path.parent != run / "code"]
    top = [path for path in everything if path.parent == run]
    path = dice.choice(top if dice.random() < 0.3 else everything)
    what, do = dice.choice(PLACES)
    do(path)
    return f"{path.relative_to(run)} {what}"


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def do(path: Path) -> None:
        _remove(path)
        make(path)

    return do


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _beside(name: str) -> Callable[[Path], object]:
    return lambda path: (path.parent / name).mkdir(exist_ok=True)


PLACES: tuple[tuple[str, Callable[[Path], object]], ...] = (
    ("is missing", _remove),
    ("is a folder", _instead(Path.mkdir)),
    ("is a file", _instead(Path.touch)),
    ("is a named pipe", _instead(os.mkfifo)),
    ("is a link to an endless device", _instead(lambda path: path.symlink_to("/dev/zero"))),
    ("is a link to itself", _instead(lambda path: path.symlink_to(path.name))),
    ("is a link to its own folder", _instead(lambda path: path.symlink_to("."))),
    ("is a dangling link", _instead(lambda path: path.symlink_to("nowhere"))),
    ("is a terabyte of nothing", _instead(_sparse)),
    ("may not be read", lambda path: path.is_symlink() or path.chmod(0)),
    ("has a neighbour with a name that draws", _beside("rank_00007\x1b]0;x\x07\u202e.out")),
    ("has a neighbour of a huge number", _beside("rank_" + "9" * 200 + ".jsonl")),
    ("has a neighbour whose name is no text", _beside(os.fsdecode(b"rank_\xff.jsonl"))),
    ("has a neighbour without a number", _beside("rank_.err")),
)
