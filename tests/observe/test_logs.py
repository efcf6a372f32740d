"""Reading the logs of a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.launcher.api.logs import read_logs
from clusterctl.launcher.observe.logs import Logs, Selection, check_selection, sources, time_of, without_worker
from clusterctl.shared.errors import NotFoundError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.stamp import stamp

Fabricate = Callable[..., RunDir]
BEGAN = [{"event": "began"}]


@pytest.fixture
def run(fabricate: Fabricate) -> RunDir:
    """Two attempts of two ranks; each line names its attempt and rank."""
    files: dict[str, object] = {}
    for attempt in (0, 1):
        files[f"attempts/{attempt}/host.log"] = f"{attempt} host\n"
        for rank in (0, 1):
            files[f"attempts/{attempt}/events/rank_{rank:05}.jsonl"] = BEGAN
            for stream in ("out", "err"):
                files[f"attempts/{attempt}/logs/rank_{rank:05}.{stream}"] = f"{attempt} {rank} {stream}\n"
    return fabricate(files=files)


def read(run: RunDir, selection: Selection, tail: int | None = None) -> list[str]:
    return [line.content.decode() for line in Logs(run, selection, tail).read(ended=True)]


def test_lines_are_ordered_by_attempt_rank_and_stream(run: RunDir) -> None:
    ranks = [f"{attempt} {rank} {stream}" for attempt in (0, 1) for rank in (0, 1) for stream in ("out", "err")]
    assert read(run, Selection()) == ranks


def test_lines_can_be_filtered_by_attempt_rank_and_stream(run: RunDir) -> None:
    assert read(run, Selection(attempt=1, rank=0, streams=("err",))) == ["1 0 err"]


def test_selecting_one_rank_ignores_other_logs(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    make = Path.__truediv__
    monkeypatch.setattr(Path, "__truediv__", lambda path, name: made.append(str(name)) or make(path, name))
    assert [source.rank for source in sources(run, Selection(attempt=1, rank=0))] == [0, 0]
    assert sources(run, Selection(attempt=1, rank=7)) == []
    assert not {"rank_00001.out", "rank_00001.err"} & {*made}


def test_the_batch_scripts_log_is_shown_on_request(run: RunDir) -> None:
    assert read(run, Selection(attempt=0, rank=1, streams=("out",), host=True)) == ["0 host", "0 1 out"]


def test_the_batch_scripts_log_is_shown_if_no_rank_ever_started(fabricate: Fabricate) -> None:
    run = fabricate(files={"attempts/0/host.log": "srun: error: pyxis: failed to import image\n"})
    assert read(run, Selection()) == ["srun: error: pyxis: failed to import image"]


def test_tail_applies_to_each_file(fabricate: Fabricate) -> None:
    logs = {f"attempts/0/logs/rank_0000{rank}.out": "".join(f"{rank} {n}\n" for n in range(5)) for rank in (0, 1)}
    run = fabricate(files=logs | {"attempts/0/events/rank_00000.jsonl": BEGAN})
    assert read(run, Selection(), tail=2) == ["0 3", "0 4", "1 3", "1 4"]
    assert read(run, Selection(), tail=0) == []


def test_growing_logs_are_followed_across_attempts(fabricate: Fabricate) -> None:
    run = fabricate(files={"attempts/0/logs/rank_00000.out": "old\none\ntor"})
    logs = Logs(run, Selection(), tail=1)

    def added(*, ended: bool = False) -> list[bytes]:
        return [line.content for line in logs.read(ended=ended)]

    assert added() == []  # the last line is incomplete
    with run.attempt(0).log(0).open("a") as file:
        file.write("n\ntwo\n")
    assert added() == [b"torn", b"two"]
    later = run.attempt(1).log(0)
    later.parent.mkdir(parents=True)
    later.write_text("again\nand again")
    assert added() == [b"again"]
    assert added(ended=True) == [b"and again"]


def test_non_text_bytes_are_passed_through(fabricate: Fabricate) -> None:
    run = fabricate(files={"attempts/0/logs/rank_00000.out": ""})
    run.attempt(0).log(0).write_bytes(b"\xff\x1b[2J\n")
    (line,) = Logs(run, Selection()).read(ended=True)
    assert line.content == b"\xff\x1b[2J"
    assert line.source == sources(run, Selection())[0]


def test_a_missing_rank_or_attempt_is_reported(run: RunDir) -> None:
    with pytest.raises(NotFoundError, match="no attempt 7") as caught:
        check_selection(run, Selection(attempt=7))
    assert caught.value.hint == "it has 0, 1"
    with pytest.raises(NotFoundError, match="no rank 9"):
        check_selection(run, Selection(rank=9))
    check_selection(run, Selection(attempt=1, rank=1))


def test_each_log_is_opened_once_and_its_attempts_events_are_read_once(
    fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = {f"attempts/0/logs/rank_{rank:05}.out": f"{stamp(1e6)}{rank}\n" for rank in range(30)}
    run = fabricate(files=logs | {"attempts/0/host.json": {"start": 100}})
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **named: opened.append(str(path)) or real(path, *rest, **named))
    assert len(read(run, Selection())) == 30
    assert len(opened) == len(set(opened)) == 31


def test_lines_since_a_time_are_found_without_reading_older_ones(
    fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"{stamp(1e6 + second)}step {second}\n" for second in range(20_000))
    run = fabricate(files={"attempts/0/logs/rank_00000.out": text})
    taken: list[bytes] = []
    monkeypatch.setattr("clusterctl.launcher.observe.logs.time_of", lambda line: taken.append(line) or time_of(line))
    lines = [str(line) for line in read_logs(run, Selection(), since=1e6 + 19_990)]
    assert lines == [f"step {second}" for second in range(19_990, 20_000)]
    assert len(taken) < 5_000


def test_the_lines_of_one_worker_of_a_launcher_are_found(fabricate: Fabricate) -> None:
    names = {0: "[rank0]: ", 1: "[rank1]: ", 2: "[1,2]<stdout>:", 3: "[prterun-node1-77@1,3]<stderr>: "}
    prefixed = [f"{names[worker]}{worker} step {step}\n" for step in range(50) for worker in names]
    look_alikes = ["rank3 of 4\n", "3 of 4\n", "[3] of 4\n", "x[rank3]: quoted\n", "[default3]:local\n", "[rank3]:x\n"]
    run = fabricate(
        files={
            "attempts/0/host.json": {"start": 100},
            "attempts/0/logs/rank_00000.out": "".join([*prefixed[::4], *prefixed[1::4], *look_alikes]),
            "attempts/0/logs/rank_00001.out": "".join(
                stamp(1e6 + at) + line for at, line in enumerate([*prefixed[2::4], *prefixed[3::4], "[rank3]:\n"])
            ),
        }
    )
    for worker in names:
        shown = [without_worker(line.text).decode() for line in read_logs(run, Selection(worker=worker))]
        assert [text for text in shown if text] == [f"{worker} step {step}" for step in range(50)]
        last = [without_worker(line.text) for line in read_logs(run, Selection(worker=worker), tail=2)]
        assert last == ([b"3 step 49", b""] if worker == 3 else [b"%d step 48" % worker, b"%d step 49" % worker])
    assert len(list(read_logs(run, Selection(worker=1), grep="step 4"))) == 11
    assert len(list(read_logs(run, Selection(worker=2), since=1e6 + 40))) == 10
    with pytest.raises(NotFoundError, match="no line of worker 4") as caught:
        list(read_logs(run, Selection(worker=4)))
    assert caught.value.hint == "its lines name 0-3"


def test_the_errors_of_one_worker_are_kept_apart(fabricate: Fabricate) -> None:
    """Two workers of one launcher fail at the same time; torchrun and torch each name the worker."""
    lines = ["Traceback (most recent call last):", '  File "train.py", line {at}, in <module>', "{error}: of {worker}"]
    each = [
        [line.format(at=10 + worker, error=error, worker=worker) for line in lines]
        for worker, error in enumerate(("ValueError", "KeyError"))
    ]
    mixed = [f"[rank{worker}]: [rank{worker}]: {each[worker][at]}\n" for at in range(3) for worker in (0, 1)]
    raised = {"event": "exception", "type": "TaskError", "message": "worker 0 exited with 1", "time": 105}
    files = {
        "attempts/0/host.json": {"start": 100},
        "attempts/0/events/rank_00000.jsonl": [*BEGAN, raised],
        "attempts/0/logs/rank_00000.err": "".join([*mixed, "[rank2]: closed\n"]),
    }
    run = fabricate(files=files)
    for worker in (0, 1):
        (failure,) = read_logs(run, Selection(worker=worker)).errors()
        assert failure.text.splitlines() == each[worker]
    assert read_logs(run, Selection(worker=2)).errors() == []
    with pytest.raises(NotFoundError, match="no line of worker 3"):
        read_logs(run, Selection(worker=3)).errors()


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["torchrun", "train.py"], "torchrun --tee 3"),
        (["accelerate", "launch", "train.py"], "accelerate launch --tee 3"),
        (["deepspeed", "train.py"], "--enable_each_rank_log"),
        (["python", "train.py"], "`rank=0`"),
    ],
)
def test_how_to_see_workers_whose_lines_do_not_name_them(fabricate: Fabricate, argv: list[str], hint: str) -> None:
    files = {"attempts/0/host.json": {"start": 100}, "attempts/0/logs/rank_00000.out": "worker 1\n[default1]:x\n"}
    run = fabricate(files=files)
    record = json.loads(run.run_json.read_text())
    record["job"] |= {"workload": "command", "argv": argv, "train": {}}
    run.run_json.write_text(json.dumps(record))
    with pytest.raises(NotFoundError, match="no line in .* names its worker") as caught:
        list(read_logs(run, Selection(worker=1)))
    assert hint in caught.value.hint
    with pytest.raises(NotFoundError, match="no rank 7") as caught:
        list(read_logs(run, Selection(rank=7)))
    assert ("`worker=7`" in caught.value.hint) == (argv[0] != "python")
