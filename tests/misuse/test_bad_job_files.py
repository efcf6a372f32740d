"""Files that are not job files, and job files with invalid content."""

from __future__ import annotations

import functools

import pytest
from support.mistake import CONFIG, NOT_FOUND, SLURM, Desk, Mistake, rows

JOB = 'workload = "synthetic"\n'
COMMAND = 'workload = "command"\nargv = ["true"]\n'
LARGE = 2**20 + 1
bad = functools.partial(Mistake, code=CONFIG, hint="config keys")


def of(what: str, text: str, expected: str, hint: str = "config keys") -> Mistake:
    """`text` added to a good job."""
    return Mistake(what=what, job=JOB + text, code=CONFIG, expected=expected, hint=hint)


@rows(
    Mistake(
        what="a string is not closed",
        job='workload = "synthetic',
        code=CONFIG,
        expected="not valid TOML",
        hint="quotes",
    ),
    Mistake(what="a table is not closed", job=JOB + "[train\n", code=CONFIG, expected="at line 2", hint="[name]"),
    Mistake(
        what="a string has no quotes", job="workload = synthetic", code=CONFIG, expected="at line 1", hint="quotes"
    ),
    Mistake(what="a key has no value", job="workload", code=CONFIG, expected="not valid TOML", hint="[name]"),
    Mistake(
        what="a key is given twice", job=JOB + JOB, code=CONFIG, expected="Cannot overwrite a value", hint="quotes"
    ),
    Mistake(
        what="a table is opened twice", job=JOB + "[train]\n[train]\n", code=CONFIG, expected="Cannot declare", hint="["
    ),
    Mistake(
        what="a string contains a newline",
        job='workload = "a\nb"',
        code=CONFIG,
        expected="not valid TOML",
        hint="quotes",
    ),
    Mistake(
        what="it contains a NUL byte", job=b'workload = "a\x00"', code=CONFIG, expected="not valid TOML", hint="quotes"
    ),
    Mistake(
        what="it contains an escape code",
        job=b'workload = "\x1b[2J"',
        code=CONFIG,
        expected="not valid TOML",
        hint="quotes",
    ),
    Mistake(what="it is YAML", job="workload: synthetic\n", code=CONFIG, expected="not valid TOML", hint="quotes"),
    Mistake(what="it is JSON", job='{"workload": "synthetic"}', code=CONFIG, expected="not valid TOML", hint="quotes"),
    Mistake(what="it is Latin-1", job=b'workload = "\xe9"', code=CONFIG, expected="not UTF-8", hint="UTF-8"),
    Mistake(what="it is UTF-16", job=JOB.encode("utf-16"), code=CONFIG, expected="not UTF-8", hint="UTF-8"),
    Mistake(what="it is a gzip file", job=b"\x1f\x8b\x08\x00\x00\xff", code=CONFIG, expected="not UTF-8", hint="UTF-8"),
    Mistake(
        what="it is nested too deep", job="a = " + "[" * 9999, code=CONFIG, expected="not valid TOML", hint="quotes"
    ),
    Mistake(
        what="a number has 5000 digits", job="a = " + "9" * 5000, code=CONFIG, expected="not valid TOML", hint="quotes"
    ),
    Mistake(what="it is huge", job="#" * LARGE, code=CONFIG, expected="larger than", hint="a job file"),
    Mistake(what="it is empty", job="", code=CONFIG, expected="workload: missing", hint="config keys"),
    Mistake(
        what="it contains only comments",
        job="# workload\n",
        code=CONFIG,
        expected="workload: missing",
        hint="config keys",
    ),
)
def test_a_file_that_is_not_a_job(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)


@rows(
    Mistake(
        what="it is a folder",
        prepare=lambda desk: (desk.project / "job.toml").mkdir(),
        code=NOT_FOUND,
        expected="no such job file",
        hint="cora",
    ),
    Mistake(
        what="it is a dangling link",
        prepare=lambda desk: (desk.project / "job.toml").symlink_to("nowhere"),
        code=NOT_FOUND,
        expected="no such job file",
        hint="cora",
    ),
    Mistake(
        what="it is a link to itself",
        prepare=lambda desk: (desk.project / "job.toml").symlink_to("job.toml"),
        code=NOT_FOUND,
        expected="no such job file",
        hint="cora",
    ),
    Mistake(
        what="the name is misspelt", typed="submit corra", code=NOT_FOUND, expected="no job named: corra", hint="cora?"
    ),
    Mistake(what="the name is empty", typed=("submit", ""), code=NOT_FOUND, expected="no job named", hint="known:"),
    Mistake(
        what="the path ends in a slash", typed="submit jobs/", code=NOT_FOUND, expected="no such job file", hint="cora"
    ),
    Mistake(
        what="the name is very long", typed=("submit", "x" * 300), code=NOT_FOUND, expected="no job named", hint="known"
    ),
    Mistake(
        what="the path is very long",
        typed=("submit", "./" + "x/" * 3000),
        code=NOT_FOUND,
        expected="no such job",
        hint="known",
    ),
    Mistake(
        what="the name contains a NUL", typed=("submit", "co\0ra"), code=NOT_FOUND, expected="no job named", hint="cora"
    ),
    Mistake(
        what="the path contains a NUL",
        typed=("submit", "./co\0ra"),
        code=NOT_FOUND,
        expected="no such job file",
        hint="cora",
    ),
)
def test_a_job_file_that_does_not_exist(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)


@rows(
    of("a key is unknown", "epochs = 3\n", "job.toml:2: epochs: unknown key"),
    of("a key is misspelt", "[train]\nepoch = 3\n", "job.toml:3: train.epoch: unknown key (did you mean epochs?)"),
    of("a table is misspelt", "[resource]\nnodes = 1\n", "resource: unknown key (did you mean resources?)"),
    of("a table is a value", "train = 3\n", "train: expected a table, not 3"),
    of("a value is a table", "[resources.nodes]\nx = 1\n", "resources.nodes: expected a whole number, not a table"),
    of("a table is a list of tables", "[[train]]\nepochs = 1\n", "train: expected a table, not a list"),
    of("a number is a date", "[train]\nepochs = 2020-01-01\n", "expected a whole number"),
    of("several things are wrong", "[resources]\nnodes = 0\ntime = true\n", "2 problems in job.toml"),
    bad(what="the workload is misspelt", job='workload = "sinthetic"', expected="did you mean synthetic?"),
    bad(what="the workload is a number", job="workload = 5", expected="workload: expected a string"),
    bad(what="the workload is empty", job='workload = ""', expected="workload: must be one of"),
    bad(what="the workload is a list", job='workload = ["reddit"]', expected="workload: expected a string, not a list"),
    bad(what="a command has no program", job='workload = "command"', expected="argv: missing"),
    bad(what="a command's program is empty", job='workload = "command"\nargv = [""]', expected="argv"),
    bad(
        what="a program is one string", job='workload = "command"\nargv = "train.py"', expected="argv: expected a list"
    ),
    bad(
        what="an argument of a program is a number",
        job='workload = "command"\nargv = ["a", 1]',
        expected="argv: expected a string",
    ),
    bad(
        what="an argument of a program contains a NUL", job='workload = "command"\nargv = ["a\\u0000"]', expected="NUL"
    ),
    bad(what="a command has training settings", job=COMMAND + "[train]\nlr = 1", expected="train.lr: unknown key"),
    of("another workload has a program", 'argv = ["true"]\n', "only workload", "without a job: clusterctl submit -- "),
    of("the name is empty", 'name = ""\n', "name: must be 1 to 64 letters"),
    of("the name is a path out of the folder", 'name = "../../etc/passwd"\n', "name: must be 1 to 64 letters"),
    of("the name is two dots", 'name = ".."\n', "name: must be 1 to 64 letters"),
    of("the name looks like an option", 'name = "--uid=0"\n', "name: must be 1 to 64 letters"),
    of("the name runs a command", 'name = "$(touch hacked)"\n', "name: must be 1 to 64 letters"),
    of("the name ends in a newline", 'name = "a\\n"\n', "name: must be 1 to 64 letters"),
    of("the name is too long", f'name = "{"a" * 65}"\n', "name: must be 1 to 64 letters"),
    of("the name has an umlaut", 'name = "läufe"\n', "name: must be 1 to 64 letters"),
)
def test_an_invalid_job(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("resources.nodes = 0", "must be at least 1"),
        ("resources.nodes = -1", "must be at least 1"),
        ("resources.nodes = 1.5", "expected a whole number, not 1.5"),
        ("resources.nodes = 1e3", "expected a whole number"),
        ('resources.nodes = "2"', "expected a whole number, not '2'"),
        ("resources.nodes = true", "expected a whole number, not true"),
        ("resources.nodes = inf", "expected a whole number"),
        ("resources.nodes = 99999999999999999999", "must be at most"),
        ("resources.gpus_per_node = -1", "must be at least 0"),
        ("node_check = true", "node_check: expected a table, not true"),
        ("node_check.seconds = 0", "node_check.seconds: must be at least 1"),
        ('node_check.scratch = "some"', 'node_check.scratch: must be a size such as "64G"'),
        ('resources.requeue = "fast"', 'expected true or false or "expedite"'),
        ('resources.gpus_per_node = "a100"', 'expected a whole number or "TYPE:NUMBER"'),
        ('resources.gpus_per_node = "a100:1 --uid=0"', 'expected a whole number or "TYPE:NUMBER"'),
        ("resources.tasks_per_node = 0", "must be at least 1"),
        ("resources.cpus_per_task = []", "expected a whole number, not a list"),
        ("resources.memory = 64", "expected a string"),
        ('resources.memory = "64 G"', "must be a size"),
        ('resources.memory = "G"', "must be a size"),
        ('resources.memory = "٣G"', "must be a size"),
        ("resources.time = 0", "must be at least 1"),
        ("resources.time = -5", "must be at least 1"),
        ("resources.time = 99999999999999", "must be at most"),
        ('resources.time = "a fortnight"', "not a duration"),
        ('resources.time = "1:2:3:4"', "not a duration"),
        ('resources.time = ""', "not a duration"),
        (f'resources.time = "{"9" * 5000}"', "not a duration"),
        ('resources.warning = "2h"', "must be shorter than the time"),
        ("resources.nice = 99999999999", "must be at most"),
        ('resources.requeue = "yes"', "expected true or false"),
        ('resources.partition = ""', "must be one line"),
        ('resources.partition = "a\\nb"', "must be one line"),
        ('resources.comment = "\\u001b[31m"', "must be one line"),
        ('resources.comment = "x\\\\\' --uid=0"', "backslash"),
        ('resources.sbatch = {output = "x"}', "clusterctl sets this option"),
        ('resources.sbatch = {nodes = "2"}', "clusterctl sets this option"),
        ('resources.sbatch = {"--uid" = "0"}', "the long name of an sbatch option"),
        ('resources.sbatch = {"uid=0 --x" = ""}', "the long name of an sbatch option"),
        ('resources.sbatch = {hint = "a\\\\"}', "backslash"),
        ('env = {"A B" = "x"}', "a shell variable's name"),
        ('env = {"X;touch hacked" = "x"}', "a shell variable's name"),
        ("env = {A = 1}", "env.A: expected a string"),
        ('env = {A = "a\\u0000"}', "NUL"),
        ('env = {CLUSTERCTL_RUN_DIR = "/etc"}', "clusterctl sets this variable"),
        ('env = {SLURM_PROCID = "0"}', "sets this variable"),
        ('env = {cctl_run = "/etc"}', "clusterctl sets this variable"),
        ('container.image = "two words"', "one word"),
        ('container.image = "\\u0007"', "one word"),
        ('container.mounts = "/a:/b"', "expected a list"),
        ('container.writable = "no"', "expected true or false"),
        ("data.root = 7", "expected a string"),
        ('data.root = ""', "must be one line"),
        ("train.lr = 0", "above 0"),
        ("train.lr = nan", "above 0"),
        ("train.lr = inf", "finite"),
        ('train.lr = "fast"', "expected a number"),
        ("train.weight_decay = -1", "must be at least 0"),
        ("train.weight_decay = inf", "must be at most"),
        ("train.weight_decay = nan", "must be at least 0"),
        ("train.dropout = 1", "less than 1"),
        ("train.dropout = nan", "less than 1"),
        ("train.seed = -1", "must be at least 0"),
        ("train.seed = 99999999999999999999", "must be at most"),
        ("train.fan_out = []", "must not be empty"),
        ("train.fan_out = [0, 5]", "one number per layer"),
        ("train.fan_out = [-2]", "must be at least -1"),
        ("train.fan_out = 5", "expected a list"),
        ('train.model = "gat"', "must be one of sage, gcn"),
        ('train.device = "cuda"', "needs resources.gpus_per_node"),
        ('train.device = "tpu"', "must be one of auto, cpu, cuda"),
        ('train.precision = "float16"', "must be one of float32"),
    ],
    ids=lambda value: value[:50] if "=" in value else "",
)
def test_an_invalid_value(desk: Desk, line: str, expected: str) -> None:
    of("", line, expected).make(desk)


@rows(
    of("a mount is relative", 'container = {image = "a", mounts = ["x:y"]}', "not an absolute path", "/SRC:/DST"),
    of(
        "a mount has four parts",
        'container = {image = "a", mounts = ["/a:/b:c:d"]}',
        "more than SRC",
        "must not contain ':'",
    ),
    of("a mount has a comma", 'container = {image = "a", mounts = ["/a,/b:/c"]}', "','", "link without"),
    of("an image file is relative", 'container.image = "x.sqsh"', "relative path: ", "./x.sqsh"),
    of("an image is a web address", 'container.image = "docker://python"', "neither a file", "nvcr.io"),
    of("an image runs a command", 'container.image = "a;touch${IFS}hacked"', "neither a file", "nvcr.io"),
    of("an image contains a comma", 'container.image = "a,b"', "neither a file", "nvcr.io"),
    of("a data folder has a percent sign", 'data.root = "/data/%t"', "path contains '%'", "choose a folder"),
    of("a data folder has a backslash", 'data.root = "/data\\\\x"', "path contains", "choose a folder"),
    of("the code's folder does not exist", 'code = "nowhere"', "no such folder", "`code`"),
    of("the code's folder is a file", 'code = "job.toml"', "no such folder", "`code`"),
    of("the code's folder is the whole machine", 'code = "/proc"', "code", ""),
)
def test_a_job_that_cannot_be_submitted(desk: Desk, mistake: Mistake) -> None:
    if "image" in mistake.what or "mount" in mistake.what:
        desk.use_slurm()
    mistake.make(desk)
    assert desk.asked("sbatch") == 0


@rows(
    Mistake(
        what="more nodes than there are",
        job=JOB + "resources.nodes = 5",
        code=SLURM,
        expected="job requests 5 nodes; local has 4",
        hint="clusterctl submit ./job.toml --nodes 4",
    ),
    Mistake(
        what="GPUs where there are none",
        job=JOB + "resources.gpus_per_node = 1",
        code=SLURM,
        expected="job requests 1 GPU per node; local nodes have 0 GPUs",
        hint="clusterctl submit ./job.toml --gpus-per-node 0",
    ),
    Mistake(
        what="GPUs of a type that no node has",
        typed="submit ./job.toml --cluster typed",
        job=JOB + 'resources.gpus_per_node = "h100:1"',
        files={"cluster/typed.toml": 'kind = "emulator"\nemulator.gpus_per_node = "a100:2"\n'},
        code=SLURM,
        expected="job requests 1 h100 GPU per node; typed nodes have 0 h100 GPUs",
        hint="available GPU types: a100",
    ),
    Mistake(
        what="an expedited requeue where Slurm is too old",
        typed="submit ./job.toml --set resources.requeue=expedite",
        job=JOB,
        code=CONFIG,
        expected='requeue = "expedite" needs Slurm 25.11 or later; sbatch --version: slurm 22.05.0',
        hint="clusterctl submit ./job.toml --set resources.requeue=true",
    ),
    Mistake(
        what="an option that sbatch does not know",
        job=JOB + 'resources.sbatch = {frobnicate = "1"}',
        code=SLURM,
        expected="unrecognized option '--frobnicate'",
        hint="remove it",
    ),
)
def test_a_job_that_the_cluster_cannot_run(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)


SECRET_URL = "https://hooks.example.org/T0K3N"


@rows(
    of("the URL is in the file", f'[notify]\nurl_variable = "{SECRET_URL}"\n', "a shell variable's name"),
    of("the URL is a list", f'[notify]\nurl_variable = ["{SECRET_URL}"]\n', "url_variable: expected a string"),
    of("the URL is in a variable that the script uses", '[notify]\nurl_variable = "cctl_run"\n', "choose another name"),
    of("the command is one string", '[notify]\ncommand = "mail me"\n', "notify.command: expected a list"),
    of("the command has no program", '[notify]\ncommand = [""]\n', "notify.command: needs a program"),
    of("the format is unknown", '[notify]\nformat = "teams"\n', "one of json, slack, matrix"),
    of("the URL is not set", '[notify]\nurl_variable = "HOOK"\n', "HOOK is not set", "export HOOK=https://"),
)
def test_a_bad_notify_table(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)
    assert "T0K3N" not in "".join(desk.type("submit ./job.toml")[1:])


NODES = 'workload = "node-classification"\n'


def of_nodes(what: str, text: str, expected: str) -> Mistake:
    return Mistake(what=what, job=NODES + text, code=CONFIG, expected=expected, hint="config keys")


@rows(
    of_nodes("PyG's model is misspelt", '[train]\nmodel = "graphsage"', "(did you mean GraphSAGE?)"),
    of_nodes(
        "an option of PyG's model is unknown",
        '[train]\nmodel = "GAT"\n[train.options]\nhead = 2',
        "train.options.head: unknown key (did you mean heads?)",
    ),
    of_nodes(
        "an option of PyG's model has another type",
        '[train]\nmodel = "PNA"\n[train.options]\ntowers = "two"',
        "train.options.towers: expected a whole number",
    ),
    of_nodes(
        "the whole graph is one batch of several ranks",
        '[resources]\ntasks_per_node = 2\n[train]\nmodel = "GCN"\nbatch = "graph"',
        'train.batch: "graph" trains on the whole graph in one step, which one rank computes',
    ),
    of_nodes(
        "the whole graph is sampled",
        '[train]\nmodel = "GCN"\nbatch = "graph"\nfan_out = [3, 3]',
        'train.fan_out: has no effect with train.batch = "graph"',
    ),
    of_nodes(
        "the whole graph stays on disk",
        '[data]\ncache = "1G"\n[train]\nmodel = "GCN"\nbatch = "graph"',
        'data.cache: train.batch = "graph" reads all features in each step',
    ),
    of_nodes("a model with layers has hops", '[train]\nmodel = "gat"\nhops = 2', 'train.hops: model "gat" has layers'),
    of_nodes("the batch is unknown", '[train]\nmodel = "GCN"\nbatch = "whole"', "train.batch: must be one of sampled"),
)
def test_a_bad_training_of_nodes(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)
