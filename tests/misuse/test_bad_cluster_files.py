"""Mistakes in cluster files and in the user's configuration: reported before any cluster is contacted."""

from __future__ import annotations

from support.mistake import CONFIG, NOT_FOUND, Desk, Mistake, rows


def of(what: str, text: str | bytes, expected: str, hint: str = "config keys") -> Mistake:
    """A good job submitted to a cluster whose file is `text`."""
    return Mistake(
        what=what,
        typed="submit cora --cluster odd",
        files={"cluster/odd.toml": text},
        code=CONFIG,
        expected=expected,
        hint=hint,
    )


@rows(
    of("it is not TOML", "kind: slurm", "cluster/odd.toml: not valid TOML", "quotes"),
    of("it is binary", b"\xff\xfe\x00", "not UTF-8", "UTF-8"),
    of("the kind is unknown", 'kind = "kubernetes"', "kind: must be one of slurm, emulator, sandbox"),
    of("the kind is a list", "kind = []", "kind: expected a string, not a list"),
    of("a key is misspelt", 'partitoin = "gpu"', "odd.toml:1: partitoin: unknown key (did you mean partition?)"),
    of("it contains a key of job files", "[train]\nlr = 1", "train: unknown key"),
    of("the name has a slash", 'name = "a/b"', "name: must be 1 to 64 letters"),
    of("the GPUs are a string", 'gpus_per_node = "8"', "gpus_per_node: expected a whole number"),
    of("the GPU request is unknown", 'gpu_request = "gpus"', "gpu_request: must be one of"),
    of("a setup line has a newline", 'setup = ["a\\nb"]', "setup: must be one line"),
    of("the setup is one string", 'setup = "module load cuda"', "setup: expected a list"),
    of("the interpreter is empty", 'python = ""', "python: must be one line"),
    of("the local scratch is relative", 'local_scratch = "scratch"', "local_scratch: must be an absolute path"),
    of("the local scratch has a colon", 'local_scratch = "/a:b"', "local_scratch: must be an absolute path"),
    of("the local scratch is a command", 'local_scratch = "$(pwd)"', "local_scratch: must be an absolute path"),
    of("the local scratch closes a quote", 'local_scratch = "/a\\"; id"', "local_scratch: must be an absolute path"),
    of("the environments are one string", 'python_environments = "/env"', "python_environments: expected a list"),
    of("an environment is relative", 'python_environments = ["env"]', "python_environments: must be an absolute path"),
    of("the runs folder is a number", "runs = 5", "runs: expected a string"),
    of("srun's flags are one string", 'srun_args = "--x --y"', "srun_args: expected a list"),
    of("srun's flags choose the nodes", 'srun_args = ["--nodelist=n1"]', "srun_args: must be no flag for nodes"),
    of("srun's flags let nothing overlap", 'srun_args = ["--exclusive"]', "srun_args: must be no flag for nodes"),
    of("the MPI has a space", 'mpi = "none --uid=0"', "mpi: must be one word"),
    of("the interface has a newline", 'interface = "eth0\\nx"', "interface: must be one word"),
    of("the polling floor is negative", "polling_floor = -1", "polling_floor: must be at least 0"),
    of("the polling floor is not a duration", 'polling_floor = "often"', "polling_floor: not a duration"),
    of("there are 0 virtual nodes", "[emulator]\nnodes = 0", "emulator.nodes: must be at least 1"),
    of("a variable's name has a space", 'env = {"A B" = "x"}', "env.A B: must be a shell variable's name"),
    of("a variable is Slurm's", 'env = {SLURM_JOB_ID = "1"}', "env.SLURM_JOB_ID: Slurm or clusterctl sets this"),
    of("the partition tries to be an option", 'partition = "a\\\\\' --uid=0"', "backslashes"),
    of("the mounts are a string", 'container = {mounts = "/a"}', "container.mounts: expected a list"),
    Mistake(
        what="it does not exist",
        typed="submit cora --cluster lcoal",
        code=NOT_FOUND,
        expected="no cluster named: lcoal",
        hint="did you mean local?",
    ),
    Mistake(
        what="the path does not exist",
        typed="submit cora --cluster ./nowhere.toml",
        code=NOT_FOUND,
        expected="no such cluster file: ./nowhere.toml",
        hint="known: ",
    ),
)
def test_a_bad_cluster_file(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)


@rows(
    Mistake(
        what="the configuration is not TOML",
        typed="submit cora",
        files={"config/clusterctl/config.toml": "cluster"},
        code=CONFIG,
        expected="config.toml: not valid TOML",
        hint="quotes",
    ),
    Mistake(
        what="the configured cluster is a number",
        typed="submit cora",
        files={"config/clusterctl/config.toml": "cluster = 5"},
        code=CONFIG,
        expected="config.toml:1: cluster: expected a string",
        hint='cluster = "local"',
    ),
    Mistake(
        what="the configuration has an unknown key",
        typed="status",
        files={"config/clusterctl/config.toml": 'clutser = "local"'},
        code=CONFIG,
        expected="did you mean cluster?",
        hint='cluster = "local"',
    ),
    Mistake(
        what="the configuration names an unknown event",
        typed="submit cora --cluster local",
        files={"config/clusterctl/config.toml": '[notify]\nevents = ["started"]'},
        code=CONFIG,
        expected="config.toml:2: notify.events: must be one of finished, failed, restarted, stalled",
        hint='cluster = "local"',
    ),
    Mistake(
        what="the configured cluster does not exist",
        typed="status",
        files={"config/clusterctl/config.toml": 'cluster = "gone"'},
        code=NOT_FOUND,
        expected="no cluster named: gone",
        hint="known: ",
    ),
)
def test_a_bad_user_configuration(desk: Desk, mistake: Mistake) -> None:
    desk.set(CLUSTERCTL_CLUSTER=None, XDG_CONFIG_HOME=str(desk.project / "config"))
    mistake.make(desk)
