"""Suggested commands name the cluster that was typed, and only where another one would be used without it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher import cli
from clusterctl.launcher.config import client_data
from clusterctl.launcher.config.sent import ClientData, Sent, SentFile
from clusterctl.launcher.config.suggestions import OF_CLUSTERS, OF_RUNS, suggested, typed_cluster
from clusterctl.shared.errors import NotFoundError


def commands(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} ")
        else:
            yield before + name, command


def test_every_command_with_a_cluster_is_known() -> None:
    with_cluster = {
        name for name, command in commands(cli.clusterctl) if any(one.name == "cluster" for one in command.params)
    }
    assert with_cluster == OF_RUNS | OF_CLUSTERS
    assert not OF_RUNS & OF_CLUSTERS


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three clusters: `near` has the same runs as the default one, `apart` others, `far` is on another machine."""
    (tmp_path / "cluster").mkdir()
    for name, text in (("near", ""), ("apart", f'runs = "{tmp_path}"\n'), ("far", 'host = "far"\n')):
        (tmp_path / "cluster" / f"{name}.toml").write_text('kind = "emulator"\n' + text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_CLUSTER", "local")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


TEXT = "see: clusterctl logs x -f; or clusterctl nodes"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (None, TEXT),
        ("local", TEXT),
        ("near", "see: clusterctl logs x -f; or clusterctl nodes --cluster near"),
        ("apart", "see: clusterctl logs --cluster apart x -f; or clusterctl nodes --cluster apart"),
        ("far", "see: clusterctl logs --cluster far x -f; or clusterctl nodes --cluster far"),
        ("no such", "see: clusterctl logs --cluster 'no such' x -f; or clusterctl nodes --cluster 'no such'"),
    ],
)
@pytest.mark.usefixtures("project")
def test_the_typed_cluster_is_named_unless_the_default_one_would_do(typed: str | None, expected: str) -> None:
    with typed_cluster(typed):
        assert suggested(TEXT) == expected
    assert suggested(TEXT) == TEXT


@pytest.mark.parametrize("typed", ["apart", "./cluster/apart.toml"])
def test_the_cluster_that_was_typed_is_not_named_when_it_is_the_default(
    typed: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERCTL_CLUSTER", "apart")
    with typed_cluster(typed):
        assert suggested(TEXT) == TEXT
    monkeypatch.setenv("CLUSTERCTL_CLUSTER", "local")
    with typed_cluster(typed):
        assert f"logs --cluster {typed} x" in suggested(TEXT)


@pytest.mark.usefixtures("project")
def test_errors_name_it_too() -> None:
    with pytest.raises(NotFoundError) as raised, typed_cluster("apart"):
        raise NotFoundError("no run named: x", "see the runs with: clusterctl status")
    assert raised.value.hint == "see the runs with: clusterctl status --cluster apart"
    assert raised.value.__notes__ == [f"hint: {raised.value.hint}"]


@pytest.mark.parametrize(
    "text",
    [
        "clusterctl submit cora --cluster local",
        "clusterctl init",
        "a clusterctl logs-like name, ./clusterctl logs and my-clusterctl logs",
        "Slurm jobs that clusterctl did not submit",
    ],
)
@pytest.mark.usefixtures("project")
def test_other_texts_stay_as_they_are(text: str) -> None:
    with typed_cluster("far"):
        assert suggested(text) == text


@pytest.fixture
def other_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process runs a command of another machine, where `--cluster 'my site'` was typed."""
    sent = Sent("/", SentFile("/far.toml", ""), typed="my site", host="me@far")
    monkeypatch.setattr(client_data, "_client_data", ClientData(sent, lambda question: iter(())))


@pytest.mark.usefixtures("other_machine")
def test_programs_of_the_other_machine_are_started_there() -> None:
    assert shlex.split(suggested("see: ls -l '/a b'")) == ["see:", "ssh", "me@far", "ls -l '/a b'"]
    assert suggested("squeue --me") == "ssh me@far 'squeue --me'"
    for other in ("scontrol requeue failed", "where the image is built: mkdir -p /a && ln -s /b /a/c"):
        assert suggested(other) == other


@pytest.mark.usefixtures("other_machine")
@given(
    command=st.sampled_from(sorted(OF_RUNS | OF_CLUSTERS)),
    words=st.lists(st.sampled_from(["x", "-f", "--tail", "--", "--cluster-of", "&", "a b", "'", "|"]), max_size=5),
    named=st.booleans(),
)
def test_a_command_gets_the_cluster_once_and_keeps_its_words(command: str, words: list[str], named: bool) -> None:
    line = shlex.join(["clusterctl", *command.split(), *(["--cluster", "else"] if named else []), *words])
    shown = suggested(line)
    assert suggested(shown) == shown
    flag = [] if named else ["--cluster", "my site"]
    assert shlex.split(shown) == ["clusterctl", *command.split(), *flag, *shlex.split(line)[1 + len(command.split()) :]]
