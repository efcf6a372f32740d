"""What a shell offers after Tab."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.mistake import Desk

import clusterctl
from clusterctl.launcher.api.completions import answer, settings, split
from clusterctl.shared.record.layout import RunDir

RUN = "cora-20260102-030405-00a1"
OURS = Path(sys.executable).with_name("clusterctl")
HEAVY = {
    "click",
    "dataclasses",
    "inspect",
    "subprocess",
    "clusterctl.launcher.cli",
    "clusterctl.runs",
    "clusterctl.shared.spec",
}
SCHEMA = json.loads((Path(clusterctl.__file__).parent / "schemas" / "job.json").read_text())


def offered(line: str, shell: str = "zsh") -> list[str]:
    return answer(shell, f"clusterctl {line}", re.split("[ =:]", line)[-1])


@pytest.fixture(autouse=True)
def runs(fabricate: Callable[..., RunDir], desk: Desk) -> None:
    run = fabricate(RUN, {"run.json": "damaged: offering names does not read it"})
    desk.set(CLUSTERCTL_RUNS=str(run.path.parent))


def test_commands_and_subcommands() -> None:
    assert offered("re") == ["release", "report", "resume", "rerun"]
    assert offered("config s") == ["schema", "show"]
    assert offered("nonsense ") == offered("config nonsense ") == []


def test_options_and_their_values() -> None:
    assert offered("submit --in") == ["--in-allocation"]
    assert offered("diff a b -o ") == ["table", "json"]
    assert offered("diff -o t") == ["table"]
    assert offered("submit --dry-run=s") == ["--dry-run=script", "--dry-run=slurm"]
    assert offered("submit --dry-run co") == ["command", "cora"]
    assert offered("submit --nodes ") == []


COMMANDS = ["attach", "cancel", "logs", "monitor", "release", "report", "resume", "rerun", "status", "why", "diff"]


@pytest.mark.parametrize(
    "typed",
    [*COMMANDS, "diff other", "cancel other another", "submit --after", "submit --wait --after-any", "why -o json"],
)
def test_every_run_argument_offers_runs(typed: str) -> None:
    assert offered(f"{typed} ") == ["@last", "@failed", "cora", RUN]
    assert offered(f"{typed} cora-") == [RUN]
    assert offered(f"{typed} x") == []


def test_states_ranks_and_metrics_are_offered(desk: Desk) -> None:
    assert offered("status --state f") == ["finished", "failed"]
    assert offered("status --state=al") == ["--state=alive"]
    attempts = Path(os.environ["CLUSTERCTL_RUNS"], RUN, "attempts")
    for number, ranks in ((0, 1), (10, 3), (9, 2)):
        for rank in range(ranks):
            desk.write(attempts / str(number) / "logs" / f"rank_{rank:05}.out", "")
    desk.write(attempts / "10" / "logs" / "host.log", "")
    lines = '{"time": 1.5, "step": 1, "loss": 0.5}\n{"time": 2.5, "step": 2, "f1": 0.1, "own name": 0.1}\n{"lo'
    desk.write(attempts / "10" / "metrics.jsonl", lines)
    for typed in (f"logs {RUN}", "logs cora", "attach @last", "tunnel cora"):
        assert offered(f"{typed} --rank ") == ["0", "1", "2"]
    assert offered("report cora --metric ") == offered("status cora --metric ") == ["f1", "loss"]
    assert offered("logs other --rank ") == offered("logs --rank ") == offered("report --metric ") == []


@pytest.mark.parametrize("over", ["finished.json", "cancel.json"])
def test_a_run_that_is_over_is_not_offered_to_end_it(desk: Desk, over: str) -> None:
    desk.write(Path(os.environ["CLUSTERCTL_RUNS"], RUN, over), "{}")
    for command in ("cancel", "release", "attach", "tunnel", "cancel other"):
        assert offered(f"{command} ") == []
    assert RUN in offered("resume ") + offered("why ")


def test_jobs_and_clusters_are_offered_by_name_and_a_job_by_its_path(desk: Desk) -> None:
    desk.write("jobs/cora-of-mine.toml", "")
    desk.write("jobs/no word of a shell's.toml", "")
    desk.write("cluster/site.toml", 'runs = "elsewhere"')
    assert offered("submit co") == offered("nodes --for co") == ["command", "cora", "cora-of-mine"]
    assert offered("submit no") == offered("submit cora ") == []
    assert offered("submit ./") == [":file"]
    assert offered("submit --cluster s") == offered("doctor --cluster s") == ["sandbox", "site"]
    assert offered("why --cluster site ") == []


def test_arguments_of_a_program_are_left_to_the_shell() -> None:
    assert offered("submit cora -- python tr") == offered("config show -- --") == [":file"]
    assert offered("why -- x") == []


def test_settings_depend_on_the_workload_and_enumerable_values_are_offered() -> None:
    assert offered("submit cora --set train.mo") == ["train.model="]
    assert offered("submit cora --set train.model=") == ["train.model=sage", "train.model=gcn"]
    assert offered("submit imdb-gin --set train.model=") == ["train.model=gin", "train.model=plain"]
    assert offered("nodes --for imdb-gin --set train.model=g") == ["train.model=gin"]
    assert offered("submit command --set train.") == []
    assert offered("rerun x --set train.row") == ["train.row_optimizer="]
    assert offered("submit --set resources.exclusive=") == ["resources.exclusive=true", "resources.exclusive=false"]
    assert offered("submit --set resources.nodes=") == offered("submit --set no.such=") == []
    assert offered("submit --set=watchdog.act") == ["--set=watchdog.action="]
    assert "env." in offered("submit --set ")


def test_every_key_has_a_line_of_help() -> None:
    found = settings(SCHEMA, "")
    assert len(found) > 60
    assert all(found.values())


def test_fish_gets_a_line_of_help_and_bash_only_the_value_after_the_equals_sign() -> None:
    assert offered("config sh", "fish") == ["show\tPrint a resolved job and the origin of every value"]
    assert offered("submit --set train.schedule=c", "bash") == ["constant", "cosine"]
    assert answer("bash", "clusterctl submit --set 'train.schedule=co", "train.schedule=co") == [
        "train.schedule=constant",
        "train.schedule=cosine",
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", [""]),
        ("a b", ["a", "b"]),
        ("a b ", ["a", "b", ""]),
        ("a 'b c", ["a", "b c"]),
        ("a \"b c' ", ["a", "b c' "]),
        ("a b\\", ["a", "b"]),
        ("a # b", ["a", "#", "b"]),
    ],
)
def test_an_unfinished_line_is_split_into_words(line: str, words: list[str]) -> None:
    assert split(line) == words


def test_without_a_runs_folder_nothing_is_offered_or_printed(desk: Desk) -> None:
    assert offered("why --cluster nowhere ") == []
    desk.write("cluster/bad.toml", "runs =")
    assert offered("why --cluster bad ") == []


def test_completion_imports_almost_nothing(desk: Desk) -> None:
    """The cost in imported modules; the benchmarks measure the time."""
    code = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules)); from clusterctl.__main__ import main; main()"
    )
    desk.write("cluster/site.toml", f'runs = "{desk.runs}"')
    desk.write("jobs/cora.toml", 'workload = "reddit"')
    for line in ("submit co", "submit cora --set train.l", "status --cluster site @"):
        environment = {**os.environ, "_CLUSTERCTL_COMPLETE": "bash", "COMP_LINE": f"clusterctl {line}"}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        *found, modules = done.stdout.splitlines()
        assert found, line
        assert HEAVY & {*modules.split()} == set(), line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_comes_from_the_environment_unless_named(desk: Desk, shell: str) -> None:
    named = desk.type(["completion", shell])
    desk.set(SHELL=f"/usr/bin/{shell}")
    assert desk.type("completion") == named
    assert f"_CLUSTERCTL_COMPLETE={shell}" in named[1]


class Shell:
    """An interactive shell with completion loaded. Ctrl-G prints the current command line."""

    def __init__(self, command: list[str], *setup: str) -> None:
        self.controller, end = pty.openpty()
        environment = {**os.environ, "PATH": f"{OURS.parent}:{os.environ['PATH']}", "TERM": "dumb"}
        self.process = subprocess.Popen(
            command, stdin=end, stdout=end, stderr=end, env=environment, start_new_session=True
        )
        os.close(end)
        for line in setup:
            self.send(f"{line}\n")
        self.send('echo lo""aded\n')
        self.read("loaded")

    def send(self, text: str) -> None:
        os.write(self.controller, text.encode())

    def read(self, pattern: str) -> re.Match[str]:
        text, deadline = "", time.monotonic() + 60
        while time.monotonic() < deadline:
            if select.select([self.controller], [], [], 1)[0]:
                text += os.read(self.controller, 4096).decode()
            if found := re.search(pattern, text):
                return found
        raise AssertionError(f"no {pattern} in:\n{text}")

    def completed(self, line: str) -> str:
        """`line` after Tab."""
        self.send(f"\x15{line}\t\x07")
        return self.read("<<(.*)>>")[1]


SHELLS = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        'eval "$(clusterctl completion bash)"',
        'bind -x \'"\\C-g": echo "<<$READLINE_LINE>>"\'',
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        "autoload -U compinit; compinit -u -D; unsetopt zle_bracketed_paste",
        'eval "$(clusterctl completion zsh)"',
        'written() { print -r -- "<<$BUFFER>>" }; zle -N written; bindkey "^G" written; bindkey "^U" kill-whole-line',
    ),
}


@pytest.fixture(params=["bash", pytest.param("zsh", marks=pytest.mark.long)])
def shell(request: pytest.FixtureRequest) -> Iterator[Shell]:
    command, *setup = SHELLS[request.param]
    if not shutil.which(command[0]):
        pytest.skip(f"no {command[0]}: tests/install.sh shells")
    started = Shell(command, *setup)
    yield started
    started.process.kill()
    started.process.wait()
    os.close(started.controller)


@pytest.mark.long
def test_zsh_completes_in_a_startup_file_without_compinit(desk: Desk) -> None:
    command, _, *setup = SHELLS["zsh"]
    if not shutil.which(command[0]):
        pytest.skip("no zsh: tests/install.sh shells")
    started = Shell(command, "unsetopt zle_bracketed_paste", *setup)
    try:
        assert started.completed("clusterctl su") == "clusterctl submit "
    finally:
        started.process.kill()
        started.process.wait()
        os.close(started.controller)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("clusterctl su", "clusterctl submit "),
        ("clusterctl status cora-", f"clusterctl status {RUN} "),
        ("clusterctl submit cora --set train.pat", "clusterctl submit cora --set train.patience="),
        ("clusterctl submit cora --set train.schedule=cos", "clusterctl submit cora --set train.schedule=cosine "),
        ("clusterctl submit cora --set train.schedule=c", "clusterctl submit cora --set train.schedule=co"),
        ("clusterctl submit cora --set 'train.pat", "clusterctl submit cora --set 'train.patience='"),
        ("clusterctl submit --cluster=loc", "clusterctl submit --cluster=local "),
        ("clusterctl submit -- python tra", "clusterctl submit -- python train.py "),
        ("true && clusterctl why @l", "true && clusterctl why @last "),
        ("clusterctl why no", "clusterctl why no"),
    ],
)
def test_a_shell_completes_the_line(shell: Shell, desk: Desk, typed: str, completed: str) -> None:
    desk.write("train.py", "")
    desk.write("nothing", "")
    assert shell.completed(typed) in (completed, completed.removesuffix("'"))  # zsh leaves the quote open


@pytest.mark.long
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("clusterctl su", ["submit\t"]),
        ("clusterctl status cora-", [RUN]),
        ("clusterctl submit cora --set train.pat", ["train.patience=\t"]),
        ("clusterctl submit cora --set train.schedule=c", ["train.schedule=constant", "train.schedule=cosine"]),
        ("clusterctl submit -- python tra", ["train.py"]),
        ("clusterctl why no", []),
    ],
)
def test_fish_offers_completions(desk: Desk, typed: str, offered: list[str]) -> None:
    """Each completion with its line of help, which fish prints without a terminal."""
    if not shutil.which("fish"):
        pytest.skip("no fish: tests/install.sh shells")
    desk.write("train.py", "")
    desk.write("nothing", "")
    environment = {**os.environ, "PATH": f"{OURS.parent}:{os.environ['PATH']}"}
    words = ["fish", "--no-config", "-c", "clusterctl completion fish | source; complete --do-complete $argv[1]", typed]
    found = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(found) == len(offered)
    assert all(line.startswith(start) for line, start in zip(found, offered, strict=True)), found
