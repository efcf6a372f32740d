"""Below the command line, messages name arguments and keys; the command line shows flags in their place."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher import cli
from clusterctl.launcher.api.settings import job_key_tables
from clusterctl.launcher.api.submitting.sweep import load_sweep
from clusterctl.launcher.cli.options import flag_of, with_flags
from clusterctl.shared.errors import UsageError
from tests.test_hints import HOLE, texts

SOURCE = Path(cli.__file__).parents[2]
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
MARK = re.compile(r"`([a-z]\w*(?:\.[\w§-]+)*)( ?= ?)([^`\n]*)`")
# What is typed as it is: commands of ours, and those of other programs. A flag after one of them is theirs.
COMMANDS = re.compile(
    r"\b(clusterctl|sbatch|srun|squeue|scancel|sacct|scontrol|uv|pip|pipenv|poetry|pdm|torchrun|deepspeed|accelerate|python|rmi"
    r"|usermod|enroot|buildah|docker|apt-get|amd-smi|id)\b[^;]*?(?<![\w-])--[a-z]"
)
# Text that is not a message of ours, and options of sbatch and of launchers that messages explain.
ELSEWHERE = {
    "launcher/config/suggestions.py": "commands of the command line",
    "launcher/emulator": "it answers as Slurm's commands do",
    "launcher/api/agents/skill.py": "a page on the command line, for agents",
    "launcher/api/agents/plans.py": "the flags with which the user starts the server: clusterctl mcp",
    "launcher/diagnosis/signatures.py": "srun's words, and about its options",
    "launcher/containers/build.py": "lines of a Dockerfile",
    "launcher/containers/runtimes.py": "lines of a script",
    "shared/node/launch_command.py": "the options of launchers",
    "engine/data/data_sets.py": "printed by the process of `clusterctl data` itself",
}
OPEN = {"resources.sbatch.array", "resources.sbatch.chdir"}  # keys that sbatch names
OF_OTHERS = {
    *("--array", "--chdir", "--dependency", "--no-requeue", "--gpus-per-node"),  # sbatch
    *("--standalone", "--numa-binding", "--launcher"),  # torchrun, deepspeed
    *("--container-image", "--format", "--version"),  # srun
}


def messages() -> Iterator[tuple[str, str]]:
    """The texts below the command line that may reach a person, with their places; single words are no messages."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        if not name.startswith(("launcher/cli/", *ELSEWHERE)):
            yield from ((f"{name}:{line}", text) for line, text in texts(path) if " " in text.strip())


def named_flags(text: str) -> list[str]:
    """The flags in `text` that belong to no command named before them, and to no other program."""
    if COMMANDS.search(text) or re.fullmatch(rf"(?: ?{FLAG.pattern}[ =]{HOLE})+", text):  # words of a command line
        return []
    return [flag for flag in FLAG.findall(text) if flag not in OF_OTHERS]


def test_messages_below_the_command_line_name_no_flags() -> None:
    assert named_flags("cannot combine --sweep with it") == ["--sweep"]
    assert named_flags("use: clusterctl submit --wait") == []
    assert [(place, flags) for place, text in messages() if (flags := named_flags(text))] == []


def test_what_they_name_instead_are_flags_of_a_command_and_keys_of_jobs() -> None:
    flags = {name for one in options_of(cli.clusterctl) for name in (*one.opts, *one.secondary_opts)}
    known = {key.path for _, keys in job_key_tables() for key in keys}
    launcher = (text for place, text in messages() if not place.startswith("engine/"))  # which no command calls
    marks = {(found[1], found[2]) for text in launcher for found in MARK.finditer(text)}
    assert len(marks) > 30
    assert [name for name, equals in marks if equals == "=" and flag_of(name) not in flags] == []
    assert {equals for _, equals in marks} == {"=", " = "}
    assert [name for name, equals in marks if equals == " = " and name not in known | OPEN and HOLE not in name] == []


def options_of(command: click.Command) -> Iterator[click.Option]:
    """Every option of a command and those inside it."""
    context = click.Context(command)
    yield from (one for one in command.params if isinstance(one, click.Option))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner
            yield from options_of(inner)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("`large_code=True`", "--large-code"),
        ("`hold=`: a run", "--hold: a run"),
        ("leave out `overrides=`, `axes=` and `file=`", "leave out --set, --sweep and --sweep-file"),
        ("`samples=20`", "--samples 20"),
        ('`cluster="NAME,NAME"`', "--cluster NAME,NAME"),
        ('`output="a b/c.html"`', "--output 'a b/c.html'"),
        ("`since=next week`: not an age", "--since 'next week': not an age"),
        ("add `resources.nodes = 2`", "add --set resources.nodes=2"),
        ("add `train.epochs = 4` `resources.nodes = 2`", "add --set train.epochs=4 --set resources.nodes=2"),
        ('another `resources.sbatch.array = "0-9%4"`', "another --array 0-9%4"),
        ('`resources.time = "1h"`; see', "--set resources.time=1h; see"),
        ('`setup = ["/a b/activate"]`', """--set 'setup=["/a b/activate"]'"""),
        ("`dependency` of [resources]", "`dependency` of [resources]"),
        ("`squeue --me`", "`squeue --me`"),
        ('set gpu_request = "gres"', 'set gpu_request = "gres"'),
    ],
)
def test_the_command_line_shows_flags(message: str, shown: str) -> None:
    assert with_flags(message) == shown


@given(st.text())
def test_any_text_is_shown(text: str) -> None:
    assert with_flags(text.replace("`", "")) == text.replace("`", "")
    assert isinstance(with_flags(f'`a="{text}"` `{text}=1` `b = {text}`'), str)


@given(st.text())
def test_values_remain_one_word_of_a_shell(value: str) -> None:
    quoted = json.dumps(value, ensure_ascii=False)
    assert shlex.split(with_flags(f"`resources.time = {quoted}`")) == ["--set", f"resources.time={value}"]
    assert shlex.split(with_flags(f"`output={quoted}`"))[1:] == ([value] if value not in ("", "True") else [])


def test_python_reads_arguments_and_the_command_line_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=re.escape("`axes=`: expected KEY=VALUES, not: train.lr")):
        load_sweep("cora", "local", axes=["train.lr"])
    assert cli.run(["submit", "cora", "--cluster", "local", "--sweep", "train.lr"]) == 2
    assert "error: --sweep: expected KEY=VALUES, not: train.lr\n" in capsys.readouterr().err


def test_python_reads_overrides_and_the_command_line_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["submit", "cora", "--cluster", "local", "--dry-run", "--set", "train.lrr=1"]) == 3
    assert "error: --set: train.lrr: unknown" in capsys.readouterr().err
