"""Invalid command lines: unknown words, contradictions, values of the wrong type."""

from __future__ import annotations

import pytest
from support.mistake import CONFIG, NOT_FOUND, USAGE, Desk, Mistake, check_message, rows

RUN = "cora-20260101-000000-aaaa"


def usage(typed: str | tuple[str, ...], expected: str, hint: str = "--help") -> Mistake:
    return Mistake(what=str(typed), typed=typed, code=USAGE, expected=expected, hint=hint)


@rows(
    usage((), "missing command"),
    usage("sumbit cora", "no such command: sumbit", "did you mean submit?"),
    usage("\x1b[31m", "no such command", "clusterctl --help"),
    usage("kill cora", "no such command: kill", "did you mean cancel?"),
    usage("stop cora", "no such command: stop", "did you mean cancel?"),
    usage("ls", "no such command: ls", "did you mean status?"),
    usage("delete cora", "no such command: delete", "a run is a folder"),
    usage("update", "no such command: update", "clusterctl --help"),
    usage("--frobnicate", "no such option"),
    usage("submit", "neither a job nor a program", "clusterctl submit -- python train.py"),
    usage("submit --", "neither a job nor a program", "clusterctl submit -- python train.py"),
    usage("submit --nodes -- python train.py", "requires an argument"),
    usage("submit cora extra -- python", "unexpected extra argument"),
    usage("submit cora extra", "unexpected extra argument"),
    usage("submit cora --nodse 2", "no such option"),
    usage("submit cora --nodes", "requires an argument"),
    usage("submit cora --set", "requires an argument"),
    usage("submit cora --hold --wait", "--hold with --follow or --wait", "leave one"),
    usage("submit cora --hold --follow", "--hold with --follow or --wait", "leave one"),
    usage("submit cora --follow --wait", "--follow and --wait", "leave one"),
    usage("submit cora --dry-run --wait", "--dry-run cannot be combined", "leave"),
    usage("submit cora --dry-run --hold", "--dry-run cannot be combined", "leave"),
    usage("submit cora --after", "requires an argument"),
    usage("submit cora --after-any", "requires an argument"),
    usage("submit cora --after-start", "requires an argument"),
    usage("submit cora --after x --in-allocation 7", "--after: a run in an allocation is not queued", "use only one"),
    usage("submit cora --sweep", "requires an argument"),
    usage("submit cora --sweep train.lr", "--sweep: expected KEY=VALUES", "train.lr=1e-3,3e-3"),
    usage("submit cora --sweep train.seed=0..2,1", "1 appears twice", "each value once"),
    usage("submit cora --sweep train.lr=log:1e-4..1", "sampled at random", "--samples 20"),
    usage("submit cora --sweep train.lr=1,2 --sweep train.lr=3", "train.lr is swept twice", "after one --sweep"),
    usage("submit cora --sweep train.lr=1 --set train.lr=2", "both swept and set to one value", "use only one"),
    usage("submit cora --sweep name=a,b", "name cannot be swept", "share their job's name"),
    usage("submit cora --sweep lr=1,2", "neither a job key nor in the program", "train.lr"),
    usage("submit cora --sweep train.seed=0..999 --sweep train.lr=0..99", "a sweep of 100,000 runs", "--samples 100"),
    usage("submit cora --sweep train.seed=0..1 --samples 3", "there are only 2 combinations", "leave --samples out"),
    usage("submit cora --sweep train.seed=0..1 --at-once 0", "not in the range"),
    usage("submit cora --sweep train.seed=0..1 --follow", "--follow shows a single run", "status --watch"),
    usage("submit cora --sweep train.seed=0..1 --profile", "--profile cannot be combined with --sweep", "a single run"),
    usage(
        "submit cora --sweep train.seed=0..1 --in-allocation 7",
        "--sweep cannot be combined with --in-allocation",
        "leave one",
    ),
    usage("submit cora --sweep-file nowhere.txt", "--sweep-file: cannot read nowhere.txt", "per line"),
    usage("submit cora --samples 3", "--samples, --sample-seed, --at-once and --stop-early", "for example --sweep"),
    usage("submit cora --sample-seed 3", "--stop-early need a sweep", "for example --sweep"),
    usage("submit cora --sweep train.lr=1,2 --sample-seed 3", "--sample-seed needs --samples", "--samples 20"),
    usage("submit cora --sweep train.lr=1,2 --stage one", "--stage cannot be combined with --sweep", "leave one"),
    usage("resume cora --sweep train.seed=0..1", "cora is not a sweep", "clusterctl submit JOB --sweep"),
    usage("status --metric loss", "--metric ranks the runs of a sweep", "clusterctl status SWEEP"),
    usage("submit cora --profile 5", "unexpected extra argument"),
    usage(
        ("submit", "command", "--set", 'argv=["true"]', "--profile"), '--profile: workload "command"', "torch.profiler"
    ),
    usage("submit cora --timeout 5", "--timeout needs --wait", "--wait --timeout"),
    usage("submit cora --wait --timeout x", "not a valid float"),
    usage("submit cora --wait --timeout -1", "not in the range"),
    usage("submit cora --wait --timeout nan", "a number of seconds", "--wait --timeout 600"),
    usage("submit cora --dry-run=maybe", "'maybe' is not one of"),
    usage("submit cora -o yaml", "'yaml' is not one of"),
    usage("submit cora --set train.lr", "expected KEY=VALUE, not: train.lr", "for example train.lr=3e-3"),
    usage("submit cora --set =5", "expected KEY=VALUE", "for example train.lr=3e-3"),
    usage("submit cora --set ..=5", "expected KEY=VALUE", "for example train.lr=3e-3"),
    usage(("submit", "cora", "--set", ""), "expected KEY=VALUE", "for example train.lr=3e-3"),
    usage("status -n 0", "not in the range"),
    usage("status -n x", "not a valid integer"),
    usage("status -n 3 -n", "requires an argument"),
    usage("status -o table json -x", "no such option"),
    usage("dashboard x", "unexpected extra argument"),
    usage("dashboard --port 0", "not in the range"),
    usage("dashboard --port 65536", "not in the range"),
    usage("dashboard -n 0", "not in the range"),
    usage("web", "no such command: web", "did you mean dashboard?"),
    usage("logs", "missing argument 'RUN|JOBID'"),
    usage("logs x y", "unexpected extra argument"),
    usage("logs x --rank -1", "not in the range"),
    usage("logs x --rank two", "not a valid integer"),
    usage("logs x --tail -5", "not in the range"),
    usage("logs x --attempt 1e3", "not a valid integer"),
    usage("cancel", "missing argument 'RUN|SWEEP|JOBID...'"),
    usage("cancel --force x", "no such option"),
    usage("release", "missing argument 'RUN|SWEEP'"),
    usage("release a b", "unexpected extra argument"),
    usage("report", "missing argument 'RUN|SWEEP...'"),
    usage("report x --metric", "requires an argument"),
    usage("rerun", "missing argument 'RUN'"),
    usage("rerun a b", "unexpected extra argument"),
    usage("rerun x --dry-run --wait", "--dry-run cannot be combined", "leave"),
    usage("rerun x --hold --follow", "--hold with --follow or --wait", "leave one"),
    usage("rerun x --timeout 5", "--timeout needs --wait", "--wait --timeout"),
    usage("rerun x -o yaml", "'yaml' is not one of"),
    usage("diff", "missing argument 'RUN1'"),
    usage("diff a", "missing argument 'RUN2'"),
    usage("diff a b c", "unexpected extra argument"),
    usage("diff a b -o csv", "'csv' is not one of"),
    usage("compare a b", "no such command: compare", "did you mean diff?"),
    usage("repeat cora", "no such command: repeat", "did you mean rerun?"),
    usage("config", "missing command"),
    usage("config show", "neither a job nor a program", "clusterctl submit -- python train.py"),
    usage("completion tcsh", "'tcsh' is not one of"),
    usage("config shwo cora", "no such command"),
    usage("config show cora -o toml", "'toml' is not one of"),
)
def test_an_invalid_command_line(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)


def value(typed: str | tuple[str, ...], expected: str, hint: str = "config keys") -> Mistake:
    return Mistake(what=str(typed)[:80], typed=typed, code=CONFIG, expected=expected, hint=hint)


def script(typed: str, expected: str, hint: str, code: int = USAGE) -> Mistake:
    return Mistake(
        what=typed, typed=typed, code=code, expected=expected, hint=hint, files={"train.py": "", "go.sh": ""}
    )


@rows(
    usage("clean --keep-best", "--keep-best needs --older-than", "--older-than 30d"),
    usage("clean --checkpoints-only --yes", "--checkpoints-only needs --older-than", "--older-than 30d"),
    usage("clean --older-than soon", "--older-than soon: not a duration", "--older-than 2d"),
    usage("clean --older-than -1d", "--older-than -1d: not a duration", "--older-than 2d"),
    usage("clean --older-than", "requires an argument"),
    usage("clean cora", "unexpected extra argument"),
    usage("clean -o csv", "invalid value for '-o'"),
    usage("usage --by node", "invalid value for '--by'"),
    usage("usage --since yesterday", "--since yesterday: not a duration", "--since 2d"),
    usage("usage --since", "requires an argument"),
    usage("usage cora pie", "unexpected extra argument"),
)
def test_invalid_options_of_clean_and_usage(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)


BAD_EXPORTS = (
    usage("export", "missing argument 'RUN'"),
    usage("export @last --output no/such/a.tar.gz", "no such folder: no/such", "mkdir -p 'no/such'"),
    usage("export @last --output .", "is a folder: .", "--output synthetic-"),
    usage("export @last --output there.tar.gz", "file exists: there.tar.gz", "--force"),
    usage("export @last --output /dev/null --force", "file exists: /dev/null", "--output"),
)


def test_export_to_an_invalid_output(desk: Desk) -> None:
    assert desk.type("submit synthetic --hold")[0] == 0
    assert desk.type("cancel --yes @last")[0] == 0
    desk.write("there.tar.gz", "mine")
    for mistake in BAD_EXPORTS:
        code, out, err = desk.type(mistake.typed)
        check_message(err, mistake.expected, mistake.hint)
        assert (code, out) == (mistake.code, ""), mistake.what
        assert (desk.project / "there.tar.gz").read_text() == "mine"


def test_export_of_a_run_that_does_not_exist(desk: Desk) -> None:
    code, out, err = desk.type("export nothing")
    assert (code, out, list(desk.project.iterdir())) == (NOT_FOUND, "", [])
    check_message(err, "no runs in", "clusterctl status")


@rows(
    value("submit cora --nodes 0", "--set: resources.nodes: must be at least 1"),
    value("submit cora --nodes two", "--set: resources.nodes: expected a whole number, not 'two'"),
    value("submit cora --nodes 1.5", "expected a whole number, not 1.5"),
    value("submit cora --nodes true", "expected a whole number, not true"),
    value(("submit", "cora", "--nodes", "2\nname = 'x'"), "expected a whole number"),
    value(("submit", "cora", "--nodes", ""), "expected a whole number, not ''"),
    value(("submit", "cora", "--nodes", "9" * 5000), "resources.nodes"),
    value(("submit", "cora", "--set", "resources.nodes=" + "[" * 9999), "resources.nodes: expected a whole number"),
    value("submit cora --gpus-per-node -1", "must be at least 0"),
    value("submit cora --tasks-per-node x", "resources.tasks_per_node: expected a whole number"),
    value("submit cora --time soon", "resources.time: not a duration"),
    value("submit cora --time -5", "resources.time: must be at least 1"),
    value(("submit", "cora", "--partition", ""), "resources.partition: must be one line"),
    value(("submit", "cora", "--account", "a\nb"), "resources.account: must be one line"),
    value(("submit", "cora", "--qos", "\x1b]0;title\x07"), "resources.qos: must be one line"),
    value("submit cora --name ../../etc", "name: must be 1 to 64 letters"),
    value(("submit", "cora", "--name", ""), "name: must be 1 to 64 letters"),
    value("submit cora --set train.lrr=1", "(did you mean lr?)", "did you mean --set train.lr=1?"),
    value("submit cora --set nodes=1", "(did you mean resources.nodes?)", "did you mean --set resources.nodes=1?"),
    value("submit cora --set lr=1e-3", "(did you mean train.lr?)", "did you mean --set train.lr=0.001?"),
    value("submit cora --set epochs=2", "(did you mean train.epochs?)", "did you mean --set train.epochs=2?"),
    value("submit cora --set batch=64", "(did you mean train.batch_size?)", "did you mean --set train.batch_size=64?"),
    value("submit cora --set hiden_channels=8", "mean train.hidden_channels?)", "--set train.hidden_channels=8?"),
    value("submit cora --set ndoes=2", "(did you mean resources.nodes?)", "did you mean --set resources.nodes=2?"),
    value("submit cora --set resources.epoch=2", "(did you mean train.epochs?)", "did you mean --set train.epochs=2?"),
    value("submit cora --set wachdog.idle=2", "(did you mean watchdog?)"),
    value("submit cora --set resources.gpus=2", "(did you mean gpus_per_node?)", "resources.gpus_per_node=2?"),
    value("submit cora --set enabled=1", "(did you mean node_check.enabled or watchdog.enabled?)"),
    value("submit cora --set evn.TOKEN=hunter2", "(did you mean env?)"),
    value("submit --set lr=1 -- python train.py", "--set: lr: unknown key"),
    value("submit cora --set train=5", "train: expected a table, not 5"),
    value("submit cora --set train.lr.x=5", "train.lr: expected a number, not a table"),
    value("submit cora --set 'train.lr=[1]'", "train.lr: expected a number, not a list"),
    value("submit cora --set train.lr=", "train.lr: expected a number, not ''"),
    value("submit cora --set workload=none", "workload: must be one of"),
    value("submit cora --set workload=[]", "workload: must be one of"),
    value("submit cora --set workload=command", "train.epochs: unknown key"),
    value("submit command --set argv=true", "argv: expected a list"),
    Mistake(
        what="a program for a built-in workload",
        typed="submit cora -- python train.py",
        code=CONFIG,
        expected='command line: argv: only workload "command" takes a program, not "reddit"',
        hint="clusterctl submit -- python train.py",
    ),
    Mistake(
        what="a program that does not exist",
        typed="submit -- python no.py",
        code=CONFIG,
        expected="no such file",
        hint="argv",
    ),
    script("submit train.py", "a program, not a job: train.py", "clusterctl submit -- python train.py"),
    script("submit python", "a program, not a job: python", "clusterctl submit -- python"),
    script(
        "submit python train.py", "the program and its arguments go after --", "clusterctl submit -- python train.py"
    ),
    script("submit --nodes 2 train.py --lr 1", "go after --: train.py", "submit --nodes 2 -- python train.py --lr 1"),
    script("submit torchrun train.py -x", "go after --: torchrun", "clusterctl submit -- torchrun train.py -x"),
    script("submit -- train.py --lr 1", "not a program on PATH", "submit -- python train.py --lr 1", CONFIG),
    script("submit -- go.sh", "not a program on PATH, but a script: go.sh", "clusterctl submit -- bash go.sh", CONFIG),
    script("submit --nodes 2 -- mpirun ./a", "each of the 2 tasks would start mpirun", "without mpirun", CONFIG),
    script("submit -N 2 -- deepspeed --launcher pdsh train.py", "starts all nodes from one", "leave out", CONFIG),
    value(("submit", "--", ""), "argv: "),
    value("submit cora --set env=5", "env: expected a table"),
    value("submit cora --set env.1A=x", "a shell variable's name"),
    value("config show cora --set train.lr=x", "train.lr: expected a number"),
)
def test_an_invalid_value_on_the_command_line(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)


@pytest.mark.parametrize("command", ["status", "logs", "cancel", "release", "rerun", "diff other", "report other"])
def test_a_run_that_does_not_exist(desk: Desk, command: str) -> None:
    code, out, err = desk.type([*command.split(), "nothing"])
    assert (code, out) == (NOT_FOUND, "")
    check_message(err, "no runs in", "clusterctl status")


@pytest.mark.parametrize("flag", ["--after", "--after-any", "--after-start"])
@pytest.mark.parametrize("more", ["", " --dry-run"])
def test_a_dependency_that_does_not_exist(desk: Desk, flag: str, more: str) -> None:
    code, out, err = desk.type(f"submit cora {flag} nothing{more}")
    assert (code, out, desk.run_directories()) == (NOT_FOUND, "", [])
    check_message(err, "no runs in", "clusterctl status")


def missing(typed: str, expected: str) -> Mistake:
    return Mistake(what=typed, typed=typed, code=NOT_FOUND, expected=expected, hint="clusterctl status")


BAD_DEPENDENCIES = (
    missing("submit cora --after nothing", "no run named: nothing"),
    missing("submit cora --sweep train.lr=1,2 --after nothing", "no run named: nothing"),
    missing("submit cora --sweep train.lr=1,2 --after nothing --dry-run", "no run named: nothing"),
    missing("submit cora --after-any ../x", "no run named: ../x"),
    missing("submit cora --name a --after a", "no run named: a"),  # the run itself does not exist yet
    usage("submit cora --after synth", "several runs start with: synth", "one of synthetic-"),
    usage("submit cora --after synthetic", "has not finished: cancelled", "clusterctl resume synthetic-"),
    usage("submit cora --after-any synthetic --after synthetic", "has not finished: cancelled", "--after-any"),
    usage(
        "submit cora --after-any synthetic --set resources.dependency=afterok:1",
        "cannot combine --after with `dependency`",
        "`dependency`",
    ),
)


def test_an_invalid_dependency(desk: Desk) -> None:
    for _ in range(2):
        assert desk.type("submit synthetic --hold")[0] == 0
        assert desk.type("cancel --yes @last")[0] == 0
    before, jobs = desk.run_directories(), desk.submitted()
    for mistake in BAD_DEPENDENCIES:
        code, out, err = desk.type(mistake.typed)
        check_message(err, mistake.expected, mistake.hint)
        assert (code, out) == (mistake.code, ""), mistake.what
        assert (desk.run_directories(), desk.submitted()) == (before, jobs), mistake.what
