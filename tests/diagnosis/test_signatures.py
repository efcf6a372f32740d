"""The cause that a log line implies. README.md in this folder lists where the lines come from."""

from __future__ import annotations

import re

import pytest

from clusterctl.launcher.diagnosis.signatures import Level, signature
from clusterctl.launcher.submission.script import part
from clusterctl.shared.errors import Cause


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("sh: 1: exec: apptainer: not found", Cause.LAUNCH),
        ("SHAPE: 1: exec: apptainer: Permission denied", Cause.LAUNCH),
        ("FATAL:   could not open image /i.sif: failed to retrieve path for /i.sif: lstat /i.sif", Cause.IMAGE),
        ("FATAL:   container creation failed: mount /a->/a error: mount source /a doesn't exist", Cause.LAUNCH),
        ("slurmstepd: error: pyxis: failed to import docker image", Cause.IMAGE),
        ("slurmstepd: error: pyxis: couldn't start container", Cause.IMAGE),
        ("slurmstepd: error: pyxis:     [ERROR] URL https://registry/v2/x returned error code: 401", Cause.IMAGE),
        ("slurmstepd: error: pyxis:     [ERROR] No such file or directory: /images/x.sqsh", Cause.IMAGE),
        ("slurmstepd: error: pyxis:     Write on output file failed: No space left on device", Cause.DISK),
        ("python: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found", Cause.IMAGE),
        ("RuntimeError: The NVIDIA driver version is insufficient for CUDA runtime version", Cause.IMAGE),
        ("ImportError: libcuda.so.1: cannot open shared object file: No such file", Cause.IMAGE),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 MiB", Cause.GPU_MEMORY),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED", Cause.GPU_MEMORY),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", Cause.NODE),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to", Cause.HOST_MEMORY),
        ("RuntimeError: DataLoader worker (pid 12) is killed by signal: Bus error.", Cause.HOST_MEMORY),
        ("terminate called after throwing an instance of 'std::bad_alloc'", Cause.HOST_MEMORY),
        ("OSError: [Errno 122] Disk quota exceeded: '/home/me/x'", Cause.DISK),
        ("OSError: [Errno 24] Too many open files", Cause.LAUNCH),
        ("/usr/bin/python3: Error while finding module specification for 'clusterctl.runs'", Cause.LAUNCH),
        (
            "python3: can't open file '/r/.code/1/lib/clusterctl/shared/node/__main__.py': [Errno 2] No such file",
            Cause.LAUNCH,
        ),
        ("sh: 1: exec: /opt/venv/bin/python: Permission denied", Cause.LAUNCH),
        ("srun: error: Unable to create step for job 12: Invalid Trackable RESource", Cause.LAUNCH),
        ("OSError: [Errno 116] Stale file handle", Cause.NODE),
        ("OSError: [Errno 30] Read-only file system: '/runs/x/attempts/0/events/rank_00000.jsonl'", Cause.NODE),
    ],
)
def test_a_line_with_a_known_cause(line: str, cause: Cause) -> None:
    found = signature(line)
    assert found is not None
    assert (found.cause, found.level) == (cause, Level.PRIMARY)


@pytest.mark.parametrize(
    ("line", "cause", "level"),
    [
        ("[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", Cause.HANG, Level.ECHO),
        ("torch.distributed.DistBackendError: remote process exited", Cause.NETWORK, Level.ECHO),
        ("RuntimeError: [gloo/transport/tcp/pair.cc] Connection closed by peer", Cause.NETWORK, Level.ECHO),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", Cause.NETWORK, Level.ECHO),
        ("socket.gaierror: [Errno -2] Name or service not known", Cause.NETWORK, Level.NETWORK),
    ],
)
def test_a_line_that_may_only_echo_the_failure_of_another_rank(line: str, cause: Cause, level: Level) -> None:
    found = signature(line)
    assert found is not None
    assert (found.cause, found.level) == (cause, level)


def test_messages_of_the_batch_script_carry_their_cause() -> None:
    found = signature("clusterctl[launch]: cannot write to /runs/x/attempts")
    assert found is not None
    assert found[:3] == (Cause.LAUNCH, Level.PRIMARY, "cannot write to /runs/x/attempts")
    causes = re.findall(r"clusterctl\[(.*?)\]", part("batch.sh"))
    assert causes
    assert set(causes) <= set(Cause)


@pytest.mark.parametrize("line", ["", "ValueError: no such layer", "epoch 3/10 loss 0.5", "KeyError: 'memory'"])
def test_a_line_without_a_known_meaning(line: str) -> None:
    assert signature(line) is None
