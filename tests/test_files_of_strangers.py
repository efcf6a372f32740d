"""Files that somebody else may have made are opened in one way, and folders are made in one way: every other place."""

from __future__ import annotations

from support.sources import sources

READS = {"open", "read_text", "read_bytes"}
MAKES = {"mkdir", "makedirs", "mkdtemp", "TemporaryDirectory"}

# Why a module may read files other than with runs/files.py (regular files only; the rest is refused at once).
KERNEL = "files of the kernel, which nobody else can make"
OURS = "files in a folder that only this user can change"
SHIPPED = "files of this package"
WRITES = "only writes; opened exclusively, or in a folder of ours"
READERS = {
    "api/completions.py": "shell completion imports nothing of `runs`; it has its own bounded read",
    "api/fetch.py": WRITES,
    "api/far_names.py": OURS,
    "api/several_clusters.py": OURS,
    "api/served.py": WRITES,
    "checks/look.py": KERNEL,
    "checks/training_set.py": "members of archives that open_regular has opened",
    "cli/__init__.py": "/dev/null",
    "cli/completion.py": SHIPPED,
    "cli/export.py": OURS,
    "cli/forward.py": WRITES,
    "containers/archive.py": "members of archives that open_regular has opened",
    "containers/folder.py": "a new image in a folder of ours",
    "containers/namespaces.py": "folders of the host and mount points, by O_PATH",
    "containers/squashfs.py": "a pipe from a program that we started",
    "containers/unpacked.py": f"{OURS}; {KERNEL}",
    "containers/wheels.py": SHIPPED,
    "display/dashboard/application.py": SHIPPED,
    "display/report/document.py": SHIPPED,
    "emulator/fifo.py": OURS,
    "emulator/host_names.py": "/etc/hosts, and a file that only we write",
    "emulator/jobs.py": OURS,
    "emulator/output.py": WRITES,
    "emulator/process_trees.py": KERNEL,
    "emulator/sbatch.py": "waits for a named pipe as Slurm's sbatch does",
    "emulator/scontrol.py": OURS,
    "emulator/sinfo.py": OURS,
    "emulator/stand_in.py": "/dev/null",
    "emulator/supervisor.py": OURS,
    "emulator/virtual_cluster.py": OURS,
    "graph/edge_spool.py": OURS,
    "graph/features/row_file.py": "arrays that prepared_once has written",
    "graph/products.py": KERNEL,
    "graph/storage.py": WRITES,
    "launch/code_files.py": "folders",
    "launch/module_archives.py": "a tar file in a file that `replacing` has opened",
    "launch/script.py": SHIPPED,
    "launch/sent_code.py": WRITES,
    "launch/snapshot.py": "by O_NONBLOCK and O_NOFOLLOW, up to the size that the walk has seen",
    "launch/warm.py": OURS,
    "notifications/send.py": "a URL",
    "notifications/tries.py": WRITES,
    "observe/exported.py": "by O_NONBLOCK, and checked; it keeps a whole line more",
    "observe/status.py": SHIPPED,
    "remote/agent.py": "the standard streams",
    "remote/answers.py": OURS,
    "remote/conversation.py": f"{OURS}; {SHIPPED}",
    "remote/install.py": OURS,
    "remote/package.py": f"{SHIPPED} and of its dependencies",
    "remote/ssh.py": "the terminal, and a lock in a folder of ours",
    "runs/answers.py": "a pipe of NCCL in the attempt, never waited for",
    "runs/entry.py": "the connection to the node's writer",
    "runs/file_systems.py": KERNEL,
    "runs/files.py": "the way itself",
    "runs/heartbeats.py": WRITES,
    "runs/idleness.py": KERNEL,
    "runs/leftovers.py": KERNEL,
    "runs/node_watch.py": WRITES,
    "runs/ownership.py": "the way itself",
    "runs/process_tree.py": KERNEL,
    "runs/staged_imports.py": OURS,
    "runs/staging.py": f"{OURS}; runs on any Python, without clusterctl",
    "sandbox/daemon_files.py": f"{SHIPPED}; {KERNEL}",
    "sandbox/description.py": KERNEL,
    "sandbox/lifecycle.py": WRITES,
    "sandbox/marked_processes.py": f"{KERNEL}; {OURS}",
    "slurm/shared.py": OURS,
    "task/meeting.py": KERNEL,
    "task/own_folder.py": "folders, without following links",
    "task/usage.py": KERNEL,
    "training/shards.py": WRITES,
    "training/trace.py": OURS,
    "workloads/data_sets.py": WRITES,
    "workloads/generated/npz.py": WRITES,
    "workloads/generated/ogb_layouts.py": WRITES,
    "workloads/generated/taobao_like.py": WRITES,
    "workloads/graph_classification.py": "raw files that PyG has just read",
    "workloads/number_files.py": "members of archives, and files that open_regular has opened",
    "workloads/ogb_format.py": WRITES,
    "workloads/own_data.py": "the module of the user's own loader, already imported",
}

# Why a module may make folders other than with runs/ownership.py (created by us, or checked to be ours).
INSIDE = "inside a folder of ours"
TEMPORARY = "a temporary folder with a random name"
DATA = "data that nothing executes, in a folder of the user's choice"
MAKERS = {
    "api/fetch.py": TEMPORARY,
    "api/init.py": "the current project",
    "api/resume.py": "a lease inside a run",
    "api/served.py": TEMPORARY,
    "cli/export.py": TEMPORARY,
    "containers/build.py": f"{INSIDE}; {TEMPORARY}",
    "containers/importing.py": f"an image folder may belong to a group; {TEMPORARY}",
    "containers/namespaces.py": "mount points in an image",
    "emulator/install.py": INSIDE,
    "emulator/scontrol.py": INSIDE,
    "emulator/starting.py": INSIDE,
    "graph/storage.py": INSIDE,
    "launch/git.py": TEMPORARY,
    "launch/snapshot.py": INSIDE,
    "notifications/tries.py": INSIDE,
    "remote/answers.py": INSIDE,
    "remote/install.py": "runs on any Python, without clusterctl, and checks its folder itself",
    "runs/checkpoints.py": INSIDE,
    "runs/files.py": INSIDE,
    "runs/judgement.py": INSIDE,
    "runs/marks.py": INSIDE,
    "runs/node_writer.py": INSIDE,
    "runs/once.py": "a lease, and a folder with a random name in it",
    "runs/ownership.py": "the way itself",
    "runs/program.py": TEMPORARY,
    "runs/staging.py": "must create it; runs on any Python, without clusterctl",
    "sandbox/daemon_files.py": INSIDE,
    "sandbox/lifecycle.py": INSIDE,
    "task/own_folder.py": TEMPORARY,
    "task/task.py": INSIDE,
    "trackers/mirror.py": INSIDE,
    "trackers/points.py": INSIDE,
    "trackers/to_wandb.py": INSIDE,
    "training/trace.py": f"{INSIDE}; {TEMPORARY}",
    "workloads/command.py": INSIDE,
    "workloads/data_sets.py": DATA,
    "workloads/generated/igb_like.py": DATA,
    "workloads/generated/ogb_layouts.py": DATA,
    "workloads/generated/reddit_like.py": DATA,
    "workloads/generated/taobao_like.py": DATA,
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
