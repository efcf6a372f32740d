"""Hints in Python name the cluster of the call, or that of the call which returned the run, and work as they are."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Callable

import pytest
from support.mistake import Desk

import clusterctl

FAILS = {"argv": ["false"], "resources.nodes": 1, "resources.tasks_per_node": 1}
APART, OTHER, NEAR = "apart", "other", "near"  # two with runs of their own; one with those of the default cluster


@pytest.fixture
def clusters(desk: Desk) -> Desk:
    desk.set(CLUSTERCTL_RUNS=None)
    for name in (APART, OTHER):
        desk.write(f"cluster/{name}.toml", f'kind = "emulator"\nruns = "{desk.folder}/{name}"\n')
    desk.write(f"cluster/{NEAR}.toml", f'kind = "emulator"\nruns = "{desk.runs}"\n')
    desk.write("cluster/default.toml", f'kind = "emulator"\nruns = "{desk.runs}"\n')
    desk.set(CLUSTERCTL_CLUSTER="default")
    return desk


def suggested(call: Callable[[], object]) -> list[str]:
    """The commands in the hint of the error of `call`, as a traceback shows it."""
    with pytest.raises(clusterctl.ClusterctlError) as raised:
        call()
    assert raised.value.__notes__ == [f"hint: {raised.value.hint}"]
    found = re.findall(r"clusterctl [^\n;]*", raised.value.hint)
    assert found
    return found


def check(desk: Desk, command: str, cluster: str | None) -> None:
    words = shlex.split(command)[1:]
    named = words[words.index("--cluster") + 1] if "--cluster" in words else None
    if words[0] == "submit":  # always names the cluster that the run was sent to
        return
    assert named == cluster, command
    code, _, err = desk.type(words)
    assert code == 0, err


@pytest.mark.parametrize(
    ("cluster", "named"),
    [
        pytest.param(None, None, marks=pytest.mark.long),
        pytest.param("default", None, marks=pytest.mark.long),
        pytest.param(NEAR, None, marks=pytest.mark.long),
        (APART, APART),
    ],
)
def test_what_a_failed_run_suggests_can_be_typed(clusters: Desk, cluster: str | None, named: str | None) -> None:
    run = clusterctl.submit("command", cluster=cluster, overrides=FAILS)
    for command in suggested(lambda: run.wait(timeout=300)):
        check(clusters, command, named)
    again = clusterctl.find(run.name, cluster)
    (listed,) = clusterctl.runs(cluster=cluster)
    for one in (run, again, listed):
        commands = [*one.why().commands, *re.findall(r"clusterctl [^\n;]*", str(one.why()))]
        assert len(commands) > 1
        for command in commands:
            check(clusters, command.partition("#")[0], named)
    for command in suggested(lambda: again.exec(["true"])):
        check(clusters, command, named)
    for command in suggested(lambda: clusterctl.find("ghost", cluster)):
        check(clusters, command, named)
    for command in suggested(lambda: clusterctl.diff(again, run, cluster)):
        check(clusters, command, named)


def test_threads_keep_their_clusters_apart(clusters: Desk) -> None:
    found: dict[str, set[str]] = {APART: set(), OTHER: set()}
    both = threading.Barrier(2)

    def ask(cluster: str) -> None:
        both.wait()
        for _ in range(50):
            with pytest.raises(clusterctl.ClusterctlError) as raised:
                clusterctl.find("ghost", cluster)
            found[cluster].add(raised.value.hint)

    threads = [threading.Thread(target=ask, args=(cluster,)) for cluster in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for cluster, (hint,) in found.items():
        assert f"--cluster {cluster}" in hint
