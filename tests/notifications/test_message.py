"""The text of a message, and its webhook formats."""

from __future__ import annotations

import json
from dataclasses import replace

from clusterctl.launcher.notifications.notifier import Message
from clusterctl.shared.record.metrics import metric_of
from clusterctl.shared.spec.job import RunEvent

FAILED = Message(
    event=RunEvent.FAILED,
    run="cora-20260102-030405-00a1",
    job="cora",
    attempt=2,
    cause="rank 1: ValueError: 1 < 2",
    seconds=7800.0,
    best=(metric_of("loss"), 0.25),
)
TEXT = """\
cora failed after 2h10m: rank 1: ValueError: 1 < 2
run cora-20260102-030405-00a1, attempt 2, best loss 0.2500
clusterctl why cora-20260102-030405-00a1"""


def test_the_text_has_the_event_the_cause_and_the_command_to_type() -> None:
    assert FAILED.text == TEXT
    finished = replace(FAILED, event=RunEvent.FINISHED, cause="", seconds=None, best=None)
    assert finished.text == "cora finished\nrun cora-20260102-030405-00a1, attempt 2"


def test_each_webhook_format_has_its_own_json() -> None:
    slack, matrix, plain = (json.loads(FAILED.content(form)) for form in ("slack", "matrix", "json"))
    assert slack == {"text": TEXT.replace("<", "&lt;")}
    assert matrix == {"msgtype": "m.text", "body": TEXT}
    assert plain == {
        "event": "failed",
        "run": "cora-20260102-030405-00a1",
        "job": "cora",
        "attempt": 2,
        "cause": "rank 1: ValueError: 1 < 2",
        "seconds": 7800.0,
        "best": {"metric": "loss", "value": 0.25},
        "text": TEXT,
    }


def test_program_output_in_a_message_is_escaped_and_truncated() -> None:
    hostile = replace(FAILED, cause="\x1b]0;title\x07<!channel>\x1b[31m & " + "x" * 10_000 + "\n\nmore")
    text = json.loads(hostile.content("slack"))["text"]
    assert "\x1b" not in text
    assert "&lt;!channel&gt; &amp; xxx" in text
    assert len(text) < 1000
    assert text.count("\n") == 2
