"""Any input gives a documented exit code, and neither a traceback nor a control character."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.mistake import check_plain

from clusterctl.launcher import cli
from clusterctl.launcher.slurm.queue import SEPARATOR, parse_queue
from clusterctl.launcher.submission.sbatch import refusal
from clusterctl.shared.errors import ClusterctlError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Cluster, Job, RedditTrain
from clusterctl.shared.spec.keys import keys_of

EXIT_CODES = {0, 1, 2, 3, 4, 5, 124, 130}
RUN = "cora-20260102-030405-00a1"
in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
KEYS = sorted(
    {key.path for cls in (Job, Cluster, RedditTrain) for key in keys_of(cls)} | {"train.lr", "nothing", "env.A"}
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["4h", "64G", "slurm", "reddit", "command", "cuda", "../x", "a:b:c", "\x1b[2J", "-1", "%t"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
TREES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6)


def toml(value: object) -> str:
    """A value as TOML, which is almost JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps("" if value is None else value)


def text_of(tree: dict[str, Any]) -> str:
    return "\n".join(f"{key} = {toml(value)}" for key, value in tree.items())


PIECES = ("[train]", "[[a]]", "workload = ", '"reddit"', "=", "x", "{", "}", "[", "1e9", "nan", "'''", "\n", "#", ".")
TOML_LIKE = (
    st.builds(text_of, TREES)
    | st.builds(lambda tree: 'workload = "reddit"\n' + text_of(tree), TREES)
    | st.text(max_size=200)
    | st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory of every example."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_CLUSTER", "local")
    monkeypatch.setenv("CLUSTERCTL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", "/nowhere")
    yield tmp_path
    assert not list((tmp_path / "state").rglob("jobs/[0-9]*"))


def typed(*words: str) -> int:
    """Run one command, and check its exit code and that it prints no control characters."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(words)
    assert code in EXIT_CODES
    assert code in (0, 1) or "\nhint: " in err.getvalue()
    assert "Traceback" not in err.getvalue()
    check_plain(err.getvalue())
    return code


@in_one_folder
@given(TOML_LIKE)
def test_any_job_file(folder: Path, text: str) -> None:
    (folder / "job.toml").write_text(text, encoding="utf-8", errors="surrogatepass")
    typed("config", "show", "./job.toml")
    typed("submit", "./job.toml", "--dry-run")


@in_one_folder
@given(st.binary(max_size=200))
def test_any_bytes_for_a_job_file(folder: Path, content: bytes) -> None:
    (folder / "job.toml").write_bytes(content)
    typed("submit", "./job.toml", "--dry-run")


@in_one_folder
@given(TOML_LIKE)
def test_any_cluster_file(folder: Path, text: str) -> None:
    (folder / "odd.toml").write_text(text, encoding="utf-8", errors="surrogatepass")
    typed("submit", "cora", "--cluster", "./odd.toml", "--dry-run")


@in_one_folder
@given(
    st.lists(
        st.builds("{}={}".format, st.sampled_from(KEYS) | st.text(max_size=8), st.text(max_size=20) | VALUES.map(toml))
        | st.text()
    )
)
def test_any_settings(folder: Path, settings: list[str]) -> None:
    typed("submit", "cora", "--dry-run", *(word for setting in settings for word in ("--set", setting)))


NAMES = (
    st.text(max_size=30)
    | st.sampled_from(["@last", "cora", RUN, RUN[:-2], "..", "*"])
    | st.text("-@cora0123456789./", max_size=30)
)


@in_one_folder
@given(st.sampled_from(["status", "logs", "release"]), NAMES)
def test_any_name_of_a_run(folder: Path, fabricate: Callable[..., RunDir], command: str, name: str) -> None:
    if not (folder / "runs" / RUN).exists():
        fabricate(RUN, {"finished.json": {"time": 1}})
    typed(command, "--", name)


@in_one_folder
@given(
    st.lists(
        st.sampled_from(["submit", "status", "config", "show", "cora", "--set", "-n", "--", "-o", "json"])
        | st.text(max_size=9),
        max_size=5,
    )
)
def test_any_words(folder: Path, words: list[str]) -> None:
    typed(*words, "--dry-run") if "submit" in words else typed(*words)


JSON_LINES = st.lists(
    st.dictionaries(st.sampled_from(["event", "stage", "time", "loss", "epoch", "steps", "x"]), VALUES), max_size=4
)
RECORDS = st.dictionaries(
    st.sampled_from(["job_id", "time", "start", "end", "exit_code", "signal", "restart_count"]), VALUES
)


@in_one_folder
@given(RECORDS | VALUES, RECORDS | VALUES, JSON_LINES, JSON_LINES, st.booleans())
def test_any_content_of_a_runs_files(
    folder: Path, fabricate: Callable[..., RunDir], host: Any, mark: Any, events: Any, metrics: Any, ended: bool
) -> None:
    files = {
        "attempts/0/host.json": json.dumps(host),
        "submission.json": json.dumps(mark),
        "finished.json" if ended else "cancel.json": json.dumps(mark),
        "attempts/0/events/rank_00000.jsonl": events,
        "attempts/0/metrics.jsonl": metrics,
    }
    (folder / "runs" / RUN / "finished.json").unlink(missing_ok=True)
    fabricate(RUN, files)
    for words in (["status"], ["status", "-o", "json"], ["status", RUN]):
        assert typed(*words) == 0


@given(st.text() | st.lists(st.text(max_size=12), max_size=20).map(SEPARATOR.join))
def test_any_answer_of_squeue(text: str) -> None:
    snapshot = parse_queue(text, 0.0)
    assert all(job_id.isdigit() for job_id in snapshot.jobs)


@given(st.text())
def test_any_error_of_sbatch(text: str) -> None:
    error = refusal(text)
    assert isinstance(error, ClusterctlError)
    assert error.message.startswith("sbatch refused the job: ")
    assert error.hint


@in_one_folder
@given(
    st.dictionaries(
        st.sampled_from(["COLUMNS", "LINES", "TERM", "NO_COLOR", "CLUSTERCTL_CLUSTER", "LANG", "HOME"]),
        st.text(max_size=12),
    )
)
def test_any_environment(folder: Path, environment: dict[str, str]) -> None:
    before = dict(os.environ)
    for name, value in environment.items():
        with contextlib.suppress(ValueError, UnicodeEncodeError):  # invalid as an environment variable
            os.environ[name] = value
    try:
        typed("status")
    finally:
        os.environ.clear()
        os.environ.update(before)
