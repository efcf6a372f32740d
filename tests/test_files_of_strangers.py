"""Files that somebody else may have made are opened in one way, and folders are made in one way: every other place."""

from __future__ import annotations

from support.sources import sources

READS = {"open", "read_text", "read_bytes"}
MAKES = {"mkdir", "makedirs", "mkdtemp", "TemporaryDirectory"}

# Why a module may read files other than with shared/record/files.py (regular files only; the rest is refused at once).
KERNEL = "files of the kernel, which nobody else can make"
OURS = "files in a folder that only this user can change"
SHIPPED = "files of this package"
WRITES = "only writes; opened exclusively, or in a folder of ours"
READERS = {
    "launcher/submission/sbatch.py": KERNEL,
    "launcher/config/script_resolution.py": KERNEL,
    "launcher/submission/user_script.py": SHIPPED,
    "launcher/submission/environments.py": "a new environment, or new files, in a folder of ours",
    "shared/node/script_start.py": f"{KERNEL}; its own run's files by O_NONBLOCK, and up to a limit",
    "shared/node/script_srun.py": f"{KERNEL}; a file of its own run",
    "shared/node/script_task.py": f"{KERNEL}; {WRITES}",
    "launcher/api/completions.py": f"shell completion imports nothing of `runs`; it has its own bounded read; {OURS}",
    "launcher/api/export.py": f"{WRITES}; reads by O_NONBLOCK, and checked; it keeps a whole line more",
    "launcher/api/fetch.py": f"a new archive in a temporary folder; {WRITES}",
    "launcher/api/several_clusters.py": OURS,
    "launcher/api/remote/served.py": WRITES,
    "launcher/checks/data_size.py": "members of archives that open_regular has opened",
    "launcher/checks/look.py": KERNEL,
    "launcher/cli/__init__.py": "/dev/null",
    "launcher/cli/completion.py": SHIPPED,
    "launcher/cli/keep.py": OURS,
    "launcher/cli/options.py": "a browser, whose method has that name",
    "launcher/cli/forward.py": WRITES,
    "launcher/containers/archive.py": "members of archives that open_regular has opened",
    "launcher/containers/contents.py": "a new image in a folder of ours",
    "launcher/containers/enter.py": "folders of the host and mount points, by O_PATH",
    "launcher/containers/squashfs.py": "a pipe from a program that we started",
    "launcher/containers/unpacked.py": f"{OURS}; {KERNEL}",
    "launcher/containers/wheels.py": SHIPPED,
    "launcher/display/dashboard/application.py": SHIPPED,
    "launcher/display/report/markup.py": SHIPPED,
    "launcher/emulator/fifo.py": OURS,
    "launcher/emulator/virtual_cluster.py": f"/etc/hosts, and a file that only we write; {OURS}",
    "launcher/emulator/jobs.py": OURS,
    "launcher/emulator/output.py": WRITES,
    "launcher/emulator/process_trees.py": KERNEL,
    "launcher/emulator/sbatch.py": "waits for a named pipe as Slurm's sbatch does",
    "launcher/emulator/scontrol.py": OURS,
    "launcher/emulator/sinfo.py": OURS,
    "launcher/emulator/stand_in.py": "/dev/null",
    "launcher/emulator/supervisor.py": OURS,
    "engine/data/edge_spool.py": OURS,
    "engine/graph/features/row_file.py": "arrays that prepared_once has written",
    "engine/graph/blocks.py": KERNEL,
    "engine/graph/storage.py": WRITES,
    "launcher/submission/code_files.py": "folders",
    "launcher/submission/module_archives.py": "a tar file in a file that `replacing` has opened",
    "launcher/submission/script.py": SHIPPED,
    "launcher/api/tunnel.py": SHIPPED,
    "shared/node/tunnel.py": KERNEL,
    "launcher/submission/sent_code.py": WRITES,
    "launcher/submission/snapshot.py": "by O_NONBLOCK and O_NOFOLLOW, up to the size that the walk has seen",
    "launcher/submission/warm.py": OURS,
    "launcher/notifications/notifier.py": f"a URL; {WRITES}",
    "launcher/api/json_output.py": SHIPPED,
    "launcher/remote/agent.py": f"the standard streams; {OURS}",
    "launcher/remote/connection.py": f"{OURS}; {SHIPPED}",
    "launcher/remote/install.py": OURS,
    "launcher/remote/package.py": f"{SHIPPED} and of its dependencies",
    "launcher/remote/ssh.py": "the terminal, and a lock in a folder of ours",
    "shared/node/answers.py": "a pipe of NCCL in the attempt, never waited for",
    "shared/node/entry.py": "the connection to the node's writer",
    "shared/record/files.py": f"{KERNEL}; the way itself",
    "shared/record/heartbeats.py": WRITES,
    "shared/node/guard.py": WRITES,
    "shared/node/idleness.py": KERNEL,
    "shared/node/numa.py": KERNEL,
    "shared/node/leftovers.py": KERNEL,
    "shared/record/ownership.py": "the way itself",
    "shared/node/processes.py": KERNEL,
    "shared/node/standby.py": KERNEL,
    "shared/node/deputy.py": KERNEL,
    "shared/node/staged_imports.py": OURS,
    "shared/node/staging.py": f"{OURS}; runs on any Python, without clusterctl",
    "launcher/sandbox/lifecycle.py": f"{SHIPPED}; {KERNEL}; {WRITES}",
    "launcher/sandbox/description.py": KERNEL,
    "launcher/sandbox/marked_processes.py": f"{KERNEL}; {OURS}",
    "launcher/slurm/client.py": OURS,
    "engine/task/meeting.py": KERNEL,
    "engine/workloads/command.py": "folders, without following links",
    "engine/task/gpus.py": KERNEL,
    "engine/task/heap.py": KERNEL,
    "engine/task/node_usage.py": KERNEL,
    "engine/training/checkpoint.py": WRITES,
    "engine/training/own/forward_memory.py": KERNEL,
    "engine/training/trace.py": OURS,
    "engine/data/data_sets.py": WRITES,
    "engine/data/reddit.py": WRITES,
    "engine/data/ogb_like.py": WRITES,
    "engine/data/taobao.py": WRITES,
    "engine/data/graph_sets.py": "raw files that PyG has just read",
    "engine/data/number_files.py": "members of archives, and files that open_regular has opened",
    "engine/data/ogb.py": WRITES,
    "engine/data/own_data.py": "the module of the user's own loader, already imported",
}

# Why a module may make folders other than with shared/record/ownership.py (created by us, or checked to be ours).
INSIDE = "inside a folder of ours"
TEMPORARY = "a temporary folder with a random name"
DATA = "data that nothing executes, in a folder of the user's choice"
MAKERS = {
    "launcher/submission/environments.py": TEMPORARY,
    "shared/node/script_start.py": INSIDE,
    "shared/node/script_task.py": INSIDE,
    "launcher/api/fetch.py": TEMPORARY,
    "launcher/api/init.py": "the current project",
    "launcher/api/remote/served.py": TEMPORARY,
    "launcher/cli/keep.py": TEMPORARY,
    "launcher/containers/build.py": f"{INSIDE}; {TEMPORARY}; an image folder may belong to a group",
    "launcher/containers/enter.py": "mount points in an image",
    "launcher/submission/user_script.py": INSIDE,
    "launcher/emulator/install.py": INSIDE,
    "launcher/emulator/scontrol.py": INSIDE,
    "launcher/emulator/sbatch.py": INSIDE,
    "engine/graph/storage.py": INSIDE,
    "launcher/submission/git.py": TEMPORARY,
    "launcher/submission/snapshot.py": INSIDE,
    "launcher/notifications/notifier.py": INSIDE,
    "launcher/remote/agent.py": INSIDE,
    "launcher/remote/install.py": "runs on any Python, without clusterctl, and checks its folder itself",
    "shared/record/checkpoints.py": INSIDE,
    "shared/record/files.py": INSIDE,
    "shared/record/marks.py": INSIDE,
    "shared/node/node_writer.py": INSIDE,
    "shared/record/once.py": "a lease, and a folder with a random name in it",
    "shared/record/ownership.py": "the way itself",
    "program.py": TEMPORARY,
    "shared/node/staging.py": "must create it; runs on any Python, without clusterctl",
    "launcher/sandbox/lifecycle.py": INSIDE,
    "engine/task/task.py": INSIDE,
    "launcher/trackers/mirror.py": INSIDE,
    "launcher/trackers/to_wandb.py": INSIDE,
    "engine/training/trace.py": f"{INSIDE}; {TEMPORARY}",
    "engine/workloads/command.py": f"{INSIDE}; {TEMPORARY}",
    "engine/data/data_sets.py": DATA,
    "engine/data/igb.py": DATA,
    "engine/data/ogb_like.py": DATA,
    "engine/data/reddit.py": DATA,
    "engine/data/taobao.py": DATA,
}


def calling(names: set[str]) -> set[str]:
    """The modules that call a function or method with one of these names."""
    return {str(path) for path, source in sources().items() if source.called & names}


def test_every_other_place_that_opens_a_file_has_a_reason() -> None:
    """Read user-given files, and those of runs, with open_regular, read_regular, read_beginning or read_whole."""
    assert sorted(calling(READS) ^ {*READERS}) == []


def test_every_other_place_that_makes_a_folder_has_a_reason() -> None:
    """Make folders whose content is executed with make_private or make_new."""
    assert sorted(calling(MAKES) ^ {*MAKERS}) == []
