"""A table from lines of exceptions and logs to classes of causes.

`level` separates causes from echoes: a rank whose peer died reports "connection closed", which explains nothing. The
lines of srun, slurmstepd, torch and glibc were captured in runs; those of pyxis, enroot, Apptainer, NCCL and CUDA are
from their documentation and public reports (tests/diagnosis/README.md).
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.shared.errors import Cause

if TYPE_CHECKING:
    from collections.abc import Iterable


class Level(IntEnum):
    """How close a message is to the cause: a rank's own failure, a network failure, an echo of another rank's end."""

    PRIMARY = 0
    NETWORK = 1
    ECHO = 2


class Detail(IntEnum):
    """How specific a message is: the reason, the step that failed, or only that something failed."""

    REASON = 0
    STEP = 1
    FRAME = 2


class Signature(NamedTuple):
    """The meaning of a known message. `words`, unless empty, replace the message."""

    cause: Cause
    level: Level = Level.PRIMARY
    words: str = ""
    detail: Detail = Detail.REASON
    software: bool = False  # the image's fault if there is one, else that of the job's Python


def _row(
    pattern: str,
    cause: Cause,
    level: Level = Level.PRIMARY,
    words: str = "",
    detail: Detail = Detail.REASON,
    *,
    software: bool = False,
) -> tuple[re.Pattern[str], Signature]:
    """`words` may refer to the groups of `pattern`."""
    return re.compile(pattern, re.IGNORECASE), Signature(cause, level, words, detail, software)


# The first match counts: specific patterns come before general ones.
_TABLE = (
    _row(
        r"client socket has (timed out|failed)|failed to connect to any network address", Cause.NETWORK, Level.NETWORK
    ),
    # Echoes of the end of other ranks.
    _row(r"watchdog caught collective operation timeout|collective operation timeout", Cause.HANG, Level.ECHO),
    _row(r"timed out (waiting|after) \S+ ?ms|wait timeout|monitoredBarrier", Cause.HANG, Level.ECHO),
    _row(r"connection (closed|reset) by (remote )?peer|broken pipe", Cause.NETWORK, Level.ECHO),
    _row(r"remote process exited", Cause.NETWORK, Level.ECHO),
    _row(r"nccl communicator was aborted|ncclRemoteError|ncclInProgress", Cause.NETWORK, Level.ECHO),
    # A rank's own mistakes and limits that NCCL, c10d and CUDA quote in their messages.
    _row(r"duplicate GPU detected", Cause.USER),
    _row(r"device-side assert|Assertion `.*` failed", Cause.USER),
    _row(
        r"(CUDA|HIP) out of memory|torch\.(cuda\.)?OutOfMemoryError|(CUDA|HIP) error: out of memory", Cause.GPU_MEMORY
    ),
    _row(
        r"Allocator \(GPU_\d+_bfc\) ran out of memory|by allocator GPU_\d+_bfc|(CUDA|HIP)_?ERROR_?OUT_?OF_?MEMORY"
        r"|cudaErrorMemoryAllocation|cupy\S*OutOfMemoryError",
        Cause.GPU_MEMORY,
    ),
    _row(r"RESOURCE_EXHAUSTED: .*out of memory", Cause.GPU_MEMORY, detail=Detail.STEP),  # XLA's, hardly ever on CPUs
    _row(r"CUBLAS_STATUS_ALLOC_FAILED|Cuda failure.*out of memory|CUDNN_STATUS_ALLOC_FAILED", Cause.GPU_MEMORY),
    _row(
        r"out of shared memory|killed by signal: bus error|insufficient shared memory"
        r"|shared memory segment /dev/shm"
        r"|(unable to|cannot|failed to|error).*(write|mmap|create|allocate|open).*(/dev/shm|</torch_)"
        r"|(no space left on device|cannot allocate memory).*(/dev/shm|</torch_)|/dev/shm.*no space left on device",
        Cause.HOST_MEMORY,
        words="no space left in /dev/shm",
    ),
    _row(r"address already in use|EADDRINUSE", Cause.NETWORK),
    _row(r"gloo[/\\]transport|process ?group(gloo|nccl)", Cause.NETWORK, Level.ECHO),
    _row(r"DistBackendError", Cause.NETWORK, Level.ECHO, detail=Detail.FRAME),
    _row(r"failed to (recv|send), got 0 bytes|TCPStore.*(closed|failed|broken)", Cause.NETWORK, Level.ECHO),
    _row(
        r"oom[-_]kill|out of memory|OOM killer|exceeded (job |step )?memory limit",
        Cause.HOST_MEMORY,
        detail=Detail.STEP,
    ),
    _row(
        r"\bOutOfMemoryError\b|java heap space|GC overhead limit exceeded|insufficient memory for the Java"
        r"|memory allocation of \d+ bytes failed|JavaScript heap out of memory",
        Cause.HOST_MEMORY,
        detail=Detail.STEP,
    ),
    _row(r"cannot allocate (a )?vector of|native memory allocation .*failed", Cause.HOST_MEMORY),
    _row(r"DefaultCPUAllocator|can't allocate memory|cannot allocate memory|std::bad_alloc", Cause.HOST_MEMORY),
    _row(r"^MemoryError\b|numpy\S*_ArrayMemoryError|unable to allocate .*[GM]iB", Cause.HOST_MEMORY),
    _row(
        r"pyxis: .*(no space left on device|disk quota exceeded)",
        Cause.DISK,
        words=r"no space to unpack the image on the node (see ENROOT_DATA_PATH): \1",
    ),
    _row(r"no space left on device|ENOSPC|disk quota exceeded|EDQUOT|disk is full|out of disk space", Cause.DISK),
    _row(r"PytorchStreamWriter failed writing|file write failed", Cause.DISK, detail=Detail.STEP),
    # pyxis prints the output of enroot, curl and unsquashfs indented: the reason is among these lines.
    _row(
        r"enroot-mount: .*mount: (\S+) at .*no such file or directory|pyxis: .*source path does not exist:? *(\S*)",
        Cause.LAUNCH,
        words=r"mount source does not exist on the node: \1\2",
    ),
    _row(
        r"(?:(?:enroot-switchroot|execve\(\)|python[\d.]*|/sh): .*|pyxis: .*)exec format error",
        Cause.IMAGE,
        words="the image was built for a different architecture than the node's (Exec format error)",
    ),
    _row(
        r"apptainer: ((command )?not found|permission denied)",  # the latter if PATH contains an inaccessible folder
        Cause.LAUNCH,
        words="Apptainer is not installed on the node",
    ),
    _row(
        r"FATAL: +container creation failed: .*mount source (\S+) doesn't exist",
        Cause.LAUNCH,
        words=r"mount source does not exist on the node: \1",
    ),
    _row(
        r"^FATAL: .*dial tcp:? (.*(?:no such host|refused|timeout|unreachable))",
        Cause.NETWORK,
        words=r"the node cannot reach the registry: \1",
    ),
    _row(
        r"^(?:FATAL|ERROR) *: {2,}(?:While checking container encryption: )?(.+)", Cause.IMAGE, words=r"\1"
    ),  # Apptainer pads its levels
    _row(
        r"unrecognized option '--container-|SPANK plugin .pyxis. option .* not found",
        Cause.LAUNCH,
        words="pyxis is not installed on the node: srun has no --container-image option",
    ),
    _row(
        r"pyxis: .*URL (\S+) returned error code: (40[13])",
        Cause.IMAGE,
        words=r"the registry denied access, or has no such image (\2): \1",
    ),
    _row(
        r"pyxis: .*requested URL returned error: (40[13])",
        Cause.IMAGE,
        words=r"the registry denied access, or has no such image (\1)",
    ),
    _row(r"pyxis: +\[ERROR\] (Could not process JSON.*)", Cause.IMAGE, words=r"\1", detail=Detail.STEP),
    _row(r"pyxis: .*URL (\S+) returned error code: 404", Cause.IMAGE, words=r"not in the registry (404): \1"),
    _row(r"pyxis: .*could not resolve host:? *(\S*)", Cause.NETWORK, words=r"the node cannot resolve the registry: \1"),
    _row(r"pyxis: .*\[ERROR\] File already exists: (\S+)", Cause.IMAGE, words=r"a container was left behind: \1"),
    _row(r"pyxis: +\[ERROR\] (.+)", Cause.IMAGE, words=r"\1"),
    _row(r"pyxis:  +((?:curl|enroot-\w+): .+)", Cause.IMAGE, words=r"\1"),
    _row(r"pyxis:  +(?!\[)(.*(?:failed|fatal|error|cannot|denied|killed|unbound).*)", Cause.IMAGE, words=r"\1"),
    _row(r"pyxis: (couldn't start container)", Cause.IMAGE, words=r"pyxis \1", detail=Detail.FRAME),
    _row(r"pyxis: child|spank.*(pyxis|container)", Cause.IMAGE, detail=Detail.FRAME),
    _row(r"pyxis: (.*(?:failed|couldn't|error|invalid).*)", Cause.IMAGE, words=r"pyxis: \1", detail=Detail.STEP),
    # The software does not fit the node: that of the image, or the job's Python without one.
    _row(r"version [`']?(GLIBC|GLIBCXX|CXXABI)_[\d.]+'? not found", Cause.IMAGE, software=True),
    _row(r"driver version is insufficient|driver on your system is too old", Cause.IMAGE, software=True),
    _row(r"no kernel image is available|CUDA capability sm_\d+ is not compatible", Cause.IMAGE, software=True),
    _row(r"lib(cuda|nvidia-ml)\.so\S*: cannot open shared object", Cause.IMAGE, software=True),
    _row(r"uncorrectable ECC|\bXid\b|fallen off the bus|NVRM|hardware error", Cause.NODE),
    _row(r"stale file handle|(input/output|remote I/O) error|transport endpoint (is not|shutdown)", Cause.NODE),
    _row(r"read-only file system|EROFS", Cause.NODE),
    # What failed, but not why: exceptions with these words are never certain.
    _row(r"DataLoader worker .* (killed by signal|exited unexpectedly)", Cause.KILLED, detail=Detail.STEP),
    _row(r"terminated with signal SIG|died with <Signals\.SIG|BrokenProcessPool", Cause.KILLED, detail=Detail.STEP),
    _row(
        r"devices are busy or unavailable|CUDA error: (unknown|initialization) error|CUDA unknown error",
        Cause.NODE,
        detail=Detail.STEP,
    ),
    _row(
        r"no CUDA GPUs are available|no CUDA-capable device|invalid device ordinal|found no NVIDIA driver"
        r"|illegal memory access|unspecified launch failure",
        Cause.USER,
        detail=Detail.STEP,
    ),
    # A node without a way out: no peer is involved.
    _row(
        r"HTTPS?ConnectionPool\(|max retries exceeded|couldn'?t connect to 'https?:|urlopen error"
        r"|could not resolve host|connection broken by '\w+Error|CONNECTION FAILED for url|getaddrinfo E\w+"
        r"|failed to resolve '|cannot reach https?:|offline mode is enabled"
        r"|check your (internet )?connection|requested files in the local cache",
        Cause.NETWORK,
    ),
    # Network failures without a dead peer.
    _row(r"connection refused|no route to host|network is unreachable", Cause.NETWORK, Level.NETWORK),
    _row(r"failed to connect to \S+ port \d+|unable to resolve host", Cause.NETWORK, Level.NETWORK),
    _row(r"rsync: .*connection unexpectedly closed", Cause.NETWORK, Level.NETWORK, detail=Detail.STEP),
    _row(r"name or service not known|temporary failure (in name resolution|resolving)", Cause.NETWORK, Level.NETWORK),
    _row(r"waiting for clients.* joined|connect(ion)? .*timed out", Cause.NETWORK, Level.NETWORK),
    _row(r"Rendezvous\w*Error|Dist(Network|Store)Error", Cause.NETWORK, Level.NETWORK, detail=Detail.STEP),
    _row(r"NCCL error|ncclSystemError|ncclUnhandledCudaError", Cause.NETWORK, Level.NETWORK, detail=Detail.STEP),
    # srun and the plugins of slurmstepd, before any program of the user's.
    _row(
        r"(?:tasks? [\d,-]+ launch failed|task launch for \S+ failed on node \S+): user not found on host",
        Cause.LAUNCH,
        words="the user does not exist on the node (User not found on host)",
    ),
    _row(r"^srun\S*: fatal: (.+)", Cause.LAUNCH, words=r"srun: \1"),
    _row(
        r"(?:tasks? [\d,-]+ launch failed|task launch for \S+ failed on node \S+): (.+)",
        Cause.LAUNCH,
        words=r"Slurm could not start the task: \1",
        detail=Detail.STEP,
    ),
    _row(r"slurmstepd\S*: .*(task_?prolog|prolog).*(fail|exit|status|error|unable|not )", Cause.LAUNCH),
    _row(r"invalid MPI type|(couldn'?t|cannot|can't) find .*(mpi|pmix?).*plugin|plugin.*\bmpi[/_]pmi", Cause.LAUNCH),
    _row(
        r"(slurmstepd|srun)\S*: .*\b(mpi/pmix?|pmixp?_\w+|PMIX?)\b.*(error|fail|unable|not |cannot|can't)", Cause.LAUNCH
    ),
    _row(r"PMIX ERROR|OMPI was not built with SLURM|OPAL ERROR", Cause.LAUNCH),
    _row(r"exec: .*(not found|permission denied)|command not found", Cause.LAUNCH),
    _row(r"slurm_script: (line )?\d+: [^:]+: not found$", Cause.LAUNCH),  # by dash, which runs `sbatch --wrap`
    _row(r"no module named '?clusterctl\b", Cause.LAUNCH),
    _row(r"error while finding module specification", Cause.LAUNCH),
    _row(
        r"can't open file '[^']*/lib/clusterctl/(?:runs|shared/node)/__main__.py'", Cause.LAUNCH
    ),  # the run's code is gone, or not mounted
    _row(r"unable to (create|confirm) (step|allocation)|task launch .* failed|execve\(\)", Cause.LAUNCH),
    _row(r"slurm.*(unable to contact|invalid job credential|communication)", Cause.LAUNCH),
    _row(r"srun: error: .*(credential|protocol)", Cause.LAUNCH),
    _row(r"too many open files", Cause.LAUNCH, words="too many open files (ulimit -n)"),
)
# A line of the batch script, from before there is an attempt directory to record it in.
_SCRIPT = re.compile(rf"clusterctl\[(?P<cause>{'|'.join(Cause)})\]: (?P<words>.*)")


@lru_cache(4096)  # ranks write the same lines
def signature(text: str) -> Signature | None:
    """The meaning of `text`, or None if unknown."""
    if ours := _SCRIPT.match(text):
        return Signature(Cause(ours["cause"]), words=ours["words"])
    for pattern, meaning in _TABLE:
        if found := pattern.search(text):
            return meaning._replace(words=found.expand(meaning.words).strip())
    return None


def most_specific(lines: Iterable[str]) -> Signature | None:
    """The meaning of the most specific line: causes before echoes, reasons before their context, then the first.

    Its words are the line itself unless the table has some.
    """
    known = (meaning._replace(words=meaning.words or line.strip()) for line in lines if (meaning := signature(line)))
    return min(known, key=lambda meaning: (meaning.level, meaning.detail), default=None)
