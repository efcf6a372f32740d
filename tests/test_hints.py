"""Every command that a hint or suggestion contains can be typed, and does what the hint promises.

They are found in the source, so that a hint is checked where it is made, whether or not a test provokes it. Each is
typed below, typed by another test that is named here, or needs a word that only its reader knows.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from support.hints import commands_in
from support.mistake import Desk

from clusterctl.launcher import cli
from clusterctl.launcher.config.suggestions import OF_CLUSTERS, OF_RUNS
from clusterctl.shared.record.files import write_json
from clusterctl.shared.record.layout import RunDir

SOURCE = Path(cli.__file__).parents[1]
ROOT = Path(__file__).resolve().parents[1]
HOLE = "§"  # in place of a value that is known only when the hint is made
# What the user must fill in, since nothing typed so far names it. Every other hint works as it is.
PLACEHOLDERS = {
    *("submit JOB", "alloc JOB", "track RUN", "why RUN", "status --cluster NAME"),
    *("status SWEEP --metric NAME", "status --watch SWEEP", "nodes --for JOB --set KEY=VALUE"),
    *(
        "submit JOB --dry-run",
        "rerun RUN --dry-run",
        "submit SCRIPT --wait",
        "submit JOB --probe",
        "submit SCRIPT --dry-run=slurm",
        "nodes --for JOB",
        "config show JOB",
        "status RUN",
        "status SWEEP",
    ),
    *(
        "logs RUN --tail 100",
        "attach § -- COMMAND",
        "submit § -- ARGUMENTS",
        "data prepare § --root DIR§",
        "image build --base IMAGE",
        "init NAME",
        "resume § --sweep KEY=VALUES",
        "submit JOB --set KEY=VALUE",
        "submit JOB --sweep KEY=VALUES",
        "submit JOB --hold",
        "submit JOB --wait",
        "logs RUN",
    ),
}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The string literals of a file with their lines, f-strings with `HOLE` for each value; docstrings left out."""
    tree = ast.parse(path.read_text())
    described = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (described | parts):
            yield node.lineno, node.value


@pytest.fixture(scope="module")
def found() -> set[tuple[str, str]]:
    """The places and commands."""
    return {
        (f"{path.relative_to(SOURCE)}:{line}", " ".join(words))
        for path in SOURCE.rglob("*.py")
        if "clusterctl " in path.read_text()
        for line, text in texts(path)
        for words in commands_in(text)
    }


def test_the_hints_of_the_source_are_found(found: set[tuple[str, str]]) -> None:
    assert len(found) > 100
    assert any(command.startswith("why ") for _, command in found)
    assert [*commands_in("use: clusterctl logs 1 -f; or clusterctl why 1")] == [["logs", "1", "-f"], ["why", "1"]]


def test_hints_have_placeholders_only_where_nothing_is_known(found: set[tuple[str, str]]) -> None:
    assert {command for _, command in found if re.search(r"\b[A-Z]{3,}\b", command)} <= PLACEHOLDERS


def test_suggested_commands_exist_with_their_options(found: set[tuple[str, str]]) -> None:
    assert not [problem for place, command in sorted(found) if (problem := wrong_in(place, command.split()))]


@pytest.mark.parametrize(
    ("typed", "wrong"),
    [
        ("status --all-jobs", ""),
        ("logs § --tail 100", ""),
        ("cancel", "Missing argument"),
        ("logs", "Missing argument"),
        ("attach § --rank first", "Invalid value"),
        ("status --no-such", "no such option"),
        ("submit --hold", "nothing to submit"),
        ("submit -- python train.py", ""),
    ],
)
def test_an_incomplete_command_is_found(typed: str, wrong: str) -> None:
    found = wrong_in("here", typed.split())
    assert wrong in found
    assert bool(found) == bool(wrong)


MENTIONED = {"release"}  # in the help of an option, where the run does not exist yet


def wrong_in(place: str, words: list[str]) -> str:
    """What cannot be typed of a command, such as an unknown option or a missing argument; empty if all can."""
    command = " ".join(words)
    if command in MENTIONED:
        return ""
    group: click.Command = cli.clusterctl
    context = click.Context(group, info_name="clusterctl", **group.context_settings)
    while words and isinstance(group, click.Group) and words[0] in group.list_commands(context):
        if (inner := group.get_command(context, words.pop(0))) is None:
            return f"{place}: {command}: no such command"
        group, context = inner, click.Context(inner, context, info_name=inner.name)
    names = {name for one in group.get_params(context) for name in (*one.opts, *one.secondary_opts)} | {"-h", "--help"}
    typed = words[: words.index("--")] if "--" in words else words
    given = [re.split(f"[={HOLE}]", word)[0] for word in typed if re.match(r"--?[a-zA-Z]", word)]
    unknown = [option for option in given if option not in names]
    if unknown:
        return f"{place}: clusterctl {command}: no such option: {', '.join(unknown)}"
    try:
        filled = [word.rstrip(HOLE) if word.startswith("-") else word.replace(HOLE, "1") for word in words]
        parsed = group.make_context(str(group.name), filled, parent=context.parent)
    except click.UsageError as error:
        chosen_later = HOLE in command and isinstance(getattr(error, "param", None) and error.param.type, click.Choice)
        return "" if chosen_later else f"{place}: clusterctl {command}: {error.format_message()}"
    if group.name == "submit" and not parsed.params.get("job") and "--" not in words:
        return f"{place}: clusterctl {command}: nothing to submit"
    return ""


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "guides").glob("*.md"))]
_BLOCK = re.compile(r"^```(?:console|sh|bash|text)\n(.*?)^```|((?:^    .*\n)+)", re.MULTILINE | re.DOTALL)


def typed_in(page: str) -> Iterator[tuple[str, bool]]:
    """The commands of a page, and whether each is whole: those in blocks are, those in sentences may be names."""
    for block in _BLOCK.finditer(page):
        for line in (block[1] or block[2]).replace("\\\n", " ").splitlines():
            if found := re.match(r"(?:    )?(?:\$ )?(?:[A-Z_]+=\S+ )*clusterctl ([a-z].*)", line):
                yield found[1], True
    for span in re.findall(r"`clusterctl ([a-z][^`]*)`", _BLOCK.sub("\n", page)):
        yield span.replace("\n", " "), False


def test_the_commands_of_the_pages_exist_with_their_options() -> None:
    typed = [(page, *one) for page in PAGES for one in typed_in(page.read_text())]
    assert len(typed) > 250
    problems = set()
    for page, command, is_whole in typed:
        first = re.split(r" (?:\||&&|2?>) ?|\)|\\\|", command)[0]
        try:
            words = shlex.split(first, comments=True)
        except ValueError:  # a text that goes on in the next line
            words = first.split()
        problem = "" if "--help" in words else wrong_in(page.name, words)
        problems.add(problem if is_whole or "no such" in problem else "")
    assert problems == {""}


def test_no_text_asks_to_install_clusterctl_from_an_index_where_the_name_may_be_another_projects() -> None:
    asking = re.compile(r"\b(pip|pipx|uv|tool) (install|add)( [^\s:;|&]+)* [`'\"]?clusterctl(\[|==|[\s'\"`]|$)")
    assert asking.search("pip install --user 'clusterctl[dashboard]'")
    assert asking.search("or use: uv tool install clusterctl")
    assert not asking.search("pip install wandb, or use: clusterctl track RUN")
    assert [place for path in SOURCE.rglob("*.py") for _, place in texts(path) if asking.search(place)] == []
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert [line for page in pages for line in page.read_text().splitlines() if asking.search(line)] == []


# Hints that are typed: provoked first where one command does it.


@dataclass(frozen=True, kw_only=True)
class Typed:
    """A hint, as it is in the source; the names of runs in `given`, `effect` and `typed` are replaced by their IDs."""

    hint: str
    given: str = ""  # the command that prints it
    typed: str = ""  # the hint as it is typed, where nothing provokes it here: with values in place of its holes
    before: Callable[[Desk], object] = lambda desk: None
    between: Callable[[dict[str, RunDir]], object] = lambda runs: None  # what happens before the hint is typed
    effect: str = ""  # a pattern of what it prints
    asked: str = ""  # the command of Slurm that it calls


TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\nKeyError: "author"\n'
ALLOCATION = "printf '12\\037RUNNING\\0371\\037N/A\\037N/A\\037node1\\0374\\037\\n'"
HELD = "printf '9\\037JobHeldUser\\037main\\037N/A\\0371\\0371:00\\037(null)\\037\\n'"
JOB_999 = """JobId=999 JobName=mine
   UserId=somebody({user}) GroupId=users(100)
   JobState=FAILED Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 ExitCode=1:0
   TimeLimit=01:00:00 SubmitTime=5 StartTime=6 EndTime=9
   Partition=main NodeList=node1
   NumNodes=1 NumCPUs=1 NumTasks=1
   WorkDir={folder}
   StdErr={folder}/slurm-999.out
   StdOut={folder}/slurm-999.out
"""


def finished(run: RunDir) -> None:
    write_json(run.finished_json, {"attempt": 0, "time": time.time()})


TYPED = [
    Typed(hint="status -a", given="diff done done", effect="done"),
    Typed(hint="status", given="why qqqqqqqq", effect="broken"),
    Typed(hint="why §", given="rerun 999", effect='KeyError: "author"'),
    Typed(hint="why ./slurm-§.out", given="why 998", effect='KeyError: "author"'),
    Typed(hint="why slurm-123.out slurm-123.err", typed="why slurm-123.out slurm-123.err", effect='KeyError: "author"'),
    Typed(hint="logs §", given="logs 999 --rank 1", effect="Traceback"),
    Typed(hint="status §", given="release done", effect="finished"),
    Typed(hint="logs §§§", given="why broken", typed="logs broken --rank 0", effect="Traceback"),
    Typed(hint="logs § --host§", given="why broken", typed="logs broken --host", effect="began"),
    Typed(hint="logs § --tail 40", typed="logs broken --tail 40", effect="Traceback"),
    Typed(hint="export §", given="fetch done", effect=r"done.*\.tar\.gz"),
    Typed(
        hint="completion bash", before=lambda desk: desk.set(SHELL="/bin/ksh"), given="completion", effect="complete"
    ),
    Typed(hint="clean --older-than 30d", given="rm done", effect="nothing to remove"),
    Typed(hint="monitor --once", given="monitor", effect="done"),
    Typed(
        hint="image list",
        before=lambda desk: desk.write("cluster/built.toml", 'container_runtime = "builtin"\npolling_floor = 0\n'),
        given="submit ./job.toml --cluster built --set container.image=./nothing.sqsh",
        effect="no images in",
    ),
    Typed(hint="image verify", typed="image verify"),
    Typed(hint="config list", typed="config list", effect="cluster +local"),
    Typed(hint="config keys", typed="config keys", effect="resources.nodes"),
    Typed(hint="status -o json", typed="status -o json", effect='"schema_version"'),
    Typed(hint="status -n 20", typed="status -n 20", effect="done"),
    Typed(hint="status --all-jobs", typed="status --all-jobs", effect="done"),
    Typed(hint="status @last --roles", given="status --roles", effect="no roles"),
    Typed(hint="usage --by job", typed="usage --by job", effect="JOB"),
    Typed(hint="diff § §", typed="diff broken done", effect="MODE"),
    Typed(hint="report §", typed="report broken", effect="report.html"),
    # These change runs.
    Typed(hint="cancel §", given="resume waiting", asked="scancel"),
    Typed(hint="resume §", given="submit ./job.toml --after broken", asked="sbatch"),
    Typed(
        hint="logs -f §",
        given="why busy",
        between=lambda runs: finished(runs["busy"]),
        effect="hello",
    ),
    Typed(hint="release §", given="why held", asked="scontrol"),
    Typed(hint="resume §.0", given="resume sweep --nodes 2", asked="sbatch"),
    Typed(hint="submit §", given="submit ./train.sbatch --profile", asked="sbatch"),
    Typed(hint="submit cora", given="submit", asked="sbatch"),
    Typed(hint="submit -- python train.py", typed="submit -- python train.py", asked="sbatch"),
    Typed(
        hint="submit ./train.sbatch",
        before=lambda desk: desk.write("script.toml", 'workload = "script"\n'),
        given="submit ./script.toml",
        asked="sbatch",
    ),
    Typed(hint="alloc --end §", given="alloc --end 12 --nodes 2", effect="gave back 12", asked="scancel"),
]

# Hints that other tests type, because they need minutes, a real Slurm, a second machine or an engine of images.
ELSEWHERE = {
    "submit cora --follow": "docs/screens.py",
    "submit cora --cluster local": "tests/test_package.py",
    "submit cora --cluster sandbox --follow": "tests/sandbox/test_lifecycle.py",
    "submit --nodes 2 --cluster sandbox --follow -- hostname": "tests/sandbox/test_lifecycle.py",
    "status --watch": "tests/display/test_watch.py",
    "dashboard": "tests/display/dashboard/test_serve.py",
    "doctor": "tests/end_to_end/test_starting.py",
    "doctor --cluster §": "tests/end_to_end/test_starting.py",
    "init": "tests/cli/test_init.py",
    "init --from train.sbatch": "tests/cli/test_init.py",
    "nodes": "tests/cli/test_nodes.py",
    "submit § --array §": "tests/end_to_end/test_arrays.py",
    "submit § --in-allocation § --follow": "tests/end_to_end/test_warm.py",
    "alloc": "tests/end_to_end/test_warm.py",
    "report § --cluster §": "tests/remote/test_hostile_node.py",
    "alloc --nodes §": "tests/end_to_end/test_warm.py",
    "alloc --nodes 2": "tests/end_to_end/test_warm.py",
    "track §": "tests/end_to_end/test_track.py",
    "data generate § --root §§": "tests/misuse/test_preflight.py",
    "image build": "tests/end_to_end/test_container_guide.py",
    "image build --fresh": "tests/containers/test_build.py",
    "image build --base bootstrap": "tests/containers/test_build.py",
    "image import §": "tests/containers/test_importing.py",
    "image verify §": "tests/cli/test_image.py",
    "sandbox up": "tests/cli/test_sandbox.py",
    "sandbox node on §": "tests/sandbox/test_lifecycle.py",
    "status --cluster §": "tests/end_to_end/test_far_faults.py",
    "mcp": "tests/agents/test_server.py",
    "mcp --allow §": "tests/agents/test_server.py",
    "mcp --allow {actions}": "tests/agents/test_server.py",
    "release": "tests/cli/test_commands.py",
}


def test_every_hint_is_typed_or_needs_a_word_of_its_reader(found: set[tuple[str, str]]) -> None:
    hints = {command for _, command in found}
    known = {one.hint for one in TYPED} | ELSEWHERE.keys() | PLACEHOLDERS
    placeholders = {command for command in hints if re.search(r"\b[A-Z]{3,}\b|RUN1", command)}
    assert sorted(hints - known - placeholders) == []
    assert sorted(({one.hint for one in TYPED} | ELSEWHERE.keys()) - hints) == []
    assert [path for path in ELSEWHERE.values() if not (ROOT / path).exists()] == []


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Desk:
    return Desk(tmp_path, monkeypatch, capfdbinary)


@pytest.fixture
def runs(desk: Desk) -> dict[str, RunDir]:
    """Runs on a Slurm of scripts: finished, failed, queued, held, running, and a sweep whose runs failed."""
    desk.write(desk.folder / "queue", "")
    desk.use_slurm(
        sbatch=f"cd {desk.folder}; n=$(cat jobs 2>/dev/null || echo 6); echo $((n + 1)) >jobs; "
        "echo Submitted batch job $((n + 1))",
        squeue=f'case "$*" in *12*) {ALLOCATION};; *Dependency*) {HELD};; *) cat {desk.folder}/queue;; esac',
        scontrol=f'case "$*" in *999*) cat {desk.folder}/shown;; *998*) echo Invalid job id >&2; exit 1;; esac',
    )
    desk.write("job.toml", 'workload = "command"\nargv = ["true"]\n[env]\nMODE = "fast"\n')
    for name, text in (("train.py", ""), ("train.sbatch", "#!/bin/bash\n")):
        desk.write(name, text)
    for name in ("slurm-998.out", "slurm-999.out", "slurm-123.err"):
        desk.write(name, TRACEBACK)
    desk.write("slurm-123.out", "start\n")
    desk.write(desk.folder / "shown", JOB_999.format(user=os.geteuid(), folder=desk.project))
    found = {}
    for name, more in {
        "broken": "--set env.MODE=slow",
        "waiting": "",
        "held": "--hold",
        "busy": "",
        "done": "",
    }.items():
        found[name] = RunDir(desk.runs / desk.type(f"submit ./job.toml --name {name} {more}")[1].strip())
    sweep = desk.type("submit ./job.toml --name sweep --sweep env.MODE=a,b")[1].strip()
    found["sweep"] = RunDir(desk.runs / sweep)
    elements = [RunDir(desk.runs / f"{sweep}.{index}") for index in (0, 1)]
    now = time.time()
    for run in (found["broken"], found["busy"], found["done"], *elements):
        attempt = run.attempt(0)
        code = {found["busy"]: None, found["done"]: 0}.get(run, 1)
        job = json.loads(run.submission_json.read_text())["job_id"]
        host = {"attempt": 0, "job_id": job, "restart_count": 0, "nodes": "node1", "start": now, "exit_code": code}
        desk.write(attempt.host_log, "began\n")
        write_json(attempt.host_json, host | {"end": None if code is None else now + 1, "signal": ""})
        desk.write(attempt.log(0), "hello\n")
        desk.write(attempt.log(0, "err"), TRACEBACK if code else "")
        began = {"event": "began", "time": now, "node": "node1", "host": "node1", "pid": 1}
        desk.write(attempt.path / "events" / "rank_00000.jsonl", json.dumps(began) + "\n")
    finished(found["done"])
    states = {"waiting": ("PENDING", "Priority"), "held": ("PENDING", "JobHeldUser"), "busy": ("RUNNING", "None")}
    lines = []
    for name, (state, reason) in states.items():
        job = json.loads(found[name].submission_json.read_text())["job_id"]
        lines.append("\x1f".join([job, state, reason, *["0"] * 5, ""]))
    desk.write(desk.folder / "queue", "\n".join(lines) + "\n")
    return found


def test_hints_do_what_they_say(desk: Desk, runs: dict[str, RunDir]) -> None:
    """All on one desk, since the runs take longer than the hints."""
    problems = [problem for one in TYPED if (problem := problem_of(one, desk, runs))]
    assert not problems, "\n\n".join(problems)


def test_hints_name_a_typed_cluster_and_do_what_they_say_there(desk: Desk, runs: dict[str, RunDir]) -> None:
    """The same runs on a cluster that is not the default one, whose runs are elsewhere."""
    there = json.dumps(str(desk.runs))
    for name in ("site", "built"):
        before = (desk.project / "cluster" / "site.toml").read_text().partition("runs =")[0]
        desk.write(f"cluster/{name}.toml", f"{before}runs = {there}\n")
    desk.set(CLUSTERCTL_CLUSTER="local", CLUSTERCTL_RUNS=str(desk.folder / "none"))
    given = [one for one in TYPED if one.given.partition(" ")[0] in OF_RUNS | OF_CLUSTERS and "built" not in one.given]
    assert len(given) > 15
    problems = [problem for one in given if (problem := problem_of(one, desk, runs, cluster="site"))]
    assert not problems, "\n\n".join(problems)


def problem_of(one: Typed, desk: Desk, runs: dict[str, RunDir], cluster: str = "") -> str:
    """What happens instead of the effect of the hint; empty if it has it. `given` is typed for `cluster`."""

    def named(text: str) -> str:
        return re.sub(r"\b({})\b".format("|".join(runs)), lambda name: runs[name[0]].id, text)

    one.before(desk)
    wanted = named(one.typed)
    if one.given:
        words = shlex.split(named(one.given))
        _, out, err = desk.type([words[0], *(["--cluster", cluster] if cluster else []), *words[1:]])
        printed = [" ".join(words) for words in commands_in(out + err)]
        pattern = re.escape(wanted or one.hint).replace(HOLE, ".+")
        begin = next((first for first in sorted(OF_RUNS | OF_CLUSTERS) if f"{one.hint} ".startswith(f"{first} ")), "")
        if begin and (cluster or "--cluster" in words):
            pattern = pattern.replace(re.escape(begin), rf"{re.escape(begin)} --cluster {cluster or '.+'}", 1)
        fitting = [command for command in printed if re.fullmatch(pattern, command)]
        if not fitting:
            return f"clusterctl {one.given} did not print {one.hint}:\n{out}{err}"
        wanted = fitting[0]
    one.between(runs)
    before = desk.asked(one.asked) if one.asked else 0
    code, out, err = desk.type(shlex.split(wanted))
    if code or not re.search(named(one.effect), out + err) or (one.asked and desk.asked(one.asked) == before):
        return f"clusterctl {wanted}: {code}, without the effect:\n{out}{err}"
    return ""
