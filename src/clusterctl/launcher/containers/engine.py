"""Image engines: docker, podman or buildah, whichever is installed, their error messages, and how they store images."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import zipfile
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from clusterctl.launcher.containers.archive import ImageConfig
from clusterctl.shared.errors import ConfigError, ImageError
from clusterctl.shared.record.files import nearest_existing
from clusterctl.shared.record.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


KINDS = ("docker", "podman", "buildah")
_INSTALL = "apt install buildah, or start a docker daemon; CONTAINER_ENGINE= chooses one"
_NO_IDS = (
    "you have no ID ranges in /etc/subuid and /etc/subgid; "
    "root can add some: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 YOU"
)
_ANSWER_SECONDS = 20
_LAST_LINES = 60
# buildah has no export; without root its mounts are visible only in its own namespace. $0: buildah, $1: container.
_EXPORT = 'root=$("$0" mount "$1") && tar -C "$root" -cf - . && "$0" umount "$1" >/dev/null'
_BOOTSTRAP = "`clusterctl image build --base bootstrap` makes one from Debian packages, without a registry"
_NO_SPACE = "no space left"
# Engine's message -> our message and hint; the first match wins. Docker 20-28, podman 4, buildah 1.28, enroot 4.
_MINOR = re.compile(r"\s*\[(?:DEBUG|INFO|WARN)\]")  # enroot's levels below that of an error
_KNOWN = (
    (r"no space left on device", _NO_SPACE, "make room{room}; see: df -h"),
    (r"disk quota exceeded", "the disk quota is used up", "make room{room}; see: quota -s"),
    (
        (
            r"no such host|dial tcp|connection refused|i/o timeout|TLS handshake|network is unreachable|"
            r"server misbehaving|certificate signed by unknown|proxyconnect|curl: \((?:5|6|7|28|35|60)\)"
        ),
        "cannot reach the registry",
        f"is there a network here? {_BOOTSTRAP}",
    ),
    (
        (
            r"unauthorized|authentication required|denied: requested access|forbidden|no basic auth|"
            r"error(?: code)?: 40[13]"
        ),
        "the registry refused access",
        "is the name right? if so: {login}",
    ),
    (
        (
            r"manifest unknown|not found: manifest|name unknown|repository does not exist|"
            r"no such image|image not known|short-name .* did not resolve|pull access denied|"
            r"returned error(?: code)?: 404"
        ),
        "no such image",
        f"check name and tag; {_BOOTSTRAP}",
    ),
    (
        r"permission denied.*docker\.sock|newuidmap|cannot (?:setup|clone).*user ?namespace|/etc/subuid",
        "no permission to build images here",
        "join the docker group, get entries in /etc/subuid and /etc/subgid, or build on another machine",
    ),
    (
        r"No matching distribution found|Could not find a version",
        "a wheel is missing",
        "download the wheels again: clusterctl image build --fresh",
    ),
)


@dataclass(frozen=True)
class Engine:
    """One engine: its kind, its program, and its image storage where that can be chosen."""

    kind: str
    program: str
    storage: Storage | None = None

    def build(self, context: Path, tag: str, arguments: Mapping[str, str], report: Callable[[str], None]) -> None:
        """Build `context`/Dockerfile as `tag`, without a network. `report` gets each line of the engine's output.

        Rootless buildah cannot switch the network off; the recipes do not use it.
        """
        words = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        words += ["--file", str(context / "Dockerfile"), "--tag", tag, str(context)]
        layers = "--layers=false" if self.storage and self.storage.copies_layers else "--layers"
        if self.kind == "docker":
            command = [self.program, "build", "--network=none", *words]
        elif self.kind == "podman":
            command = [self.program, "build", layers, "--network=none", "--pull=never", *words]
        else:
            # chroot isolation needs no other program but has no --network=none: root gives it an empty namespace.
            alone = ["unshare", "--net"] if os.geteuid() == 0 else []
            command = [*alone, self.program, "bud", layers, "--isolation=chroot", "--network=host", "--pull-never"]
            command += words
        before = self._layers()
        try:
            self._follow(command, "build", report)
        except ImageError as error:
            left = self._layers() - before
            if left and _NO_SPACE in error.message:  # otherwise keep them: the next build starts from these layers
                self._ask(["rmi", *sorted(left)])
            raise

    def pull(self, reference: str, report: Callable[[str], None]) -> None:
        """Pull `reference` from its registry. Raises ImageError with a hint that fits the cause."""
        self._follow([self.program, "pull", reference], "pull", report)

    def describe(self, reference: str) -> ImageConfig | None:
        """The configuration of the local image `reference`, or None."""
        inspect = ["inspect", "--type", "image"] if self.kind == "buildah" else ["image", "inspect"]
        done = self._ask([*inspect, reference])
        if done.returncode != 0:
            return None
        found: Any = json.loads(done.stdout)
        if self.kind == "buildah":
            return ImageConfig.of(found["OCIv1"].get("config") or {}, _digest(found["FromImageID"]))
        return ImageConfig.of(found[0].get("Config") or {}, _digest(found[0]["Id"]))

    def known(self, reference: str) -> ImageConfig:
        """The configuration of the local image `reference`. Raises ImageError if there is none."""
        found = self.describe(reference)
        if found is None:
            raise ImageError(f"{self.kind} has no image {reference}", f"see: {self.kind} images")
        return found

    def run(self, reference: str, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run `argv` in a throw-away container of `reference`."""
        if self.kind != "buildah":
            return self._ask(["run", "--rm", "--network=none", "--entrypoint=", reference, *argv])
        with self._working_container(reference) as container:
            return self._ask(["run", "--isolation=chroot", container, "--", *argv])

    @contextmanager
    def exported(self, reference: str) -> Iterator[IO[bytes]]:
        """The root file system of `reference`, all layers merged, as a tar stream."""
        with self._working_container(reference) as container:
            if self.kind == "buildah":
                rootless = [self.program, "unshare"] if os.geteuid() != 0 else []
                shell = [*rootless, "sh", "-c", _EXPORT, self.program, container]
            else:
                shell = [self.program, "export", container]
            with tempfile.TemporaryFile() as errors:
                with subprocess.Popen(
                    shell, env=self._environment, stdout=subprocess.PIPE, stderr=errors, pipesize=2**20
                ) as process:
                    assert process.stdout is not None
                    try:
                        yield process.stdout
                        process.stdout.read()  # a tar reader may leave the padding unread
                    except ImageError:
                        process.stdout.close()
                        if process.wait() in (0, -signal.SIGPIPE, 128 + signal.SIGPIPE):
                            raise  # the reader failed; otherwise the engine's own message is more useful
                if process.returncode != 0:
                    errors.seek(0)
                    raise failure(self.kind, "export", errors.read().decode(errors="replace").splitlines())

    @contextmanager
    def _working_container(self, reference: str) -> Iterator[str]:
        if self.kind == "buildah":
            done = self._ask(["from", "--pull-never", reference])
        else:
            done = self._ask(["create", "--network=none", reference, "/bin/sh"])
        if done.returncode != 0:
            raise failure(self.kind, "create", done.stderr.splitlines())
        container = done.stdout.strip().splitlines()[-1]
        try:
            yield container
        finally:
            self._ask(["rm", container])

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "STORAGE_DRIVER": self.storage.driver} if self.storage else dict(os.environ)

    def _layers(self) -> set[str]:
        """The intermediate images of earlier builds, including those left by a failed one."""
        listed = ["images", "--all", "--quiet", "--no-trunc", "--filter", "dangling=true"]
        return set() if self.kind == "docker" else set(self._ask(listed).stdout.split())

    def _ask(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        command = [self.program, *words]
        return subprocess.run(
            command, env=self._environment, capture_output=True, text=True, errors="replace", check=False
        )

    def _follow(self, command: Sequence[str], what: str, report: Callable[[str], None]) -> None:
        code, lines = follow(command, report, self._environment)
        if code != 0:
            raise failure(self.kind, what, lines)


def follow(
    command: Sequence[str], report: Callable[[str], None], environment: Mapping[str, str] | None = None
) -> tuple[int, list[str]]:
    """Run `command`, passing each line of its output to `report`; its exit code and its last lines."""
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line.rstrip())
            report(line.rstrip())
    return process.returncode, list(last)


def failure(engine: str, what: str, output: Sequence[str]) -> ImageError:
    """The error that explains the last lines of an engine, or of enroot."""
    message, hint = explain(output, engine)
    return ImageError(f"{engine} {what} failed: {message}", hint)


def explain(output: Sequence[str], engine: str) -> tuple[str, str]:
    """The message and the hint for the last lines that `engine` printed."""
    output = [line for line in map(plain, output) if line.strip() and not _MINOR.match(line)] or [*output]
    text = "\n".join(output)
    lines = [line.strip() for line in output]
    errors = [line for line in lines if re.match(r"(?i)\[?(error|fatal|failed)\b", line)]
    line = (errors or lines or ["no output"])[-1]
    login, room = f"{engine} login REGISTRY", f": {engine} {'rmi --prune' if engine == 'buildah' else 'image prune'}"
    if engine == "enroot":
        login, room = "a line for it in ~/.config/enroot/.credentials", ""
    for pattern, message, hint in _KNOWN:
        if match := re.search(pattern, text, re.IGNORECASE):
            whole = next((one for one in output if match[0].splitlines()[0] in one), line)
            return f"{message}: {whole.strip()}", hint.format(login=login, room=room)
    return line, "run the same command with -v to see its full output"


def find_engine(chosen: str | None = None, environment: Mapping[str, str] = os.environ) -> Engine:
    """The engine named by `chosen` or CONTAINER_ENGINE, else the first that works.

    A docker client without a daemon does not count. Raises ConfigError for an unknown name, ImageError if none works.
    """
    wanted = chosen or environment.get("CONTAINER_ENGINE")
    if wanted:
        kind = Path(wanted).name
        if kind not in KINDS:
            raise ConfigError(f"CONTAINER_ENGINE: no such engine: {wanted}", f"known: {', '.join(KINDS)}")
        program = shutil.which(wanted, path=environment.get("PATH"))
        if program is None:
            raise ImageError(f"CONTAINER_ENGINE: not on PATH: {wanted}", _INSTALL)
        if problem := _problem(kind, program):
            raise ImageError(f"CONTAINER_ENGINE: {wanted} does not work here: {problem}", _INSTALL)
        return _engine(kind, program, environment)
    problems = []
    for kind in KINDS:
        if program := shutil.which(kind, path=environment.get("PATH")):
            problem = _problem(kind, program)
            if not problem:
                return _engine(kind, program, environment)
            problems.append(f"{kind}: {problem}")
    found = "; ".join(problems) or "docker, podman and buildah are not on PATH"
    raise ImageError(f"no program here can build or pull an image: {found}", _INSTALL)


def _engine(kind: str, program: str, environment: Mapping[str, str]) -> Engine:
    return Engine(kind, program, None if kind == "docker" else find_storage(program, environment))


def _problem(kind: str, program: str) -> str:
    """Why `program` cannot build; empty if it can."""
    words = ["version", "--format", "{{.Server.Version}}"] if kind == "docker" else ["--version"]
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {_ANSWER_SECONDS} s"
    except OSError as error:
        return str(error.strerror)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it fails"])[-1]
        return "the daemon does not answer" if kind == "docker" else last
    if kind == "docker" or os.geteuid() == 0:
        return ""
    # Images contain files of several users, so without root it has to map more IDs than the user's own.
    words = [program, "unshare", "cat", "/proc/self/uid_map"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False)
    counts = re.findall(r"(\d+)$", done.stdout, re.MULTILINE)
    return _NO_IDS if sum(map(int, counts)) == 1 else ""


def _digest(image_id: str) -> str:
    return image_id if image_id.startswith("sha256:") else f"sha256:{image_id}"


# How buildah and podman store images: as overlaid layers, or (driver vfs) with a full copy of everything per layer.


_STORAGE_SECONDS = 20
_BASE_BYTES = 300_000_000  # of a base image with Python
_COMPILED = 1.25  # installed size / unpacked wheels: includes Python's compiled files
_VFS_COPIES = 2  # the working container and the image made from it
OVERLAY_HINT = "apt install fuse-overlayfs, so that layers share their files"


@dataclass(frozen=True)
class Storage:
    """Where images are kept, and by which driver."""

    driver: str
    folder: Path

    @property
    def copies_layers(self) -> bool:
        return self.driver == "vfs"


def find_storage(program: str, environment: Mapping[str, str]) -> Storage | None:
    """The storage that buildah or podman uses, with overlay in place of vfs if that works; None if unknown."""
    own = _asked(program, environment)
    if own and own.copies_layers and "STORAGE_DRIVER" not in environment:
        other = _asked(program, {**environment, "STORAGE_DRIVER": "overlay"})
        return other if other and not other.copies_layers else own
    return own


def space_for(wheels: Iterable[Path], storage: Storage | None) -> int:
    """Estimated bytes that a build with `wheels` takes in image storage: the wheels and their unpacked contents."""
    needed = _BASE_BYTES
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        needed += wheel.stat().st_size + int(_COMPILED * unpacked)
    return needed * _VFS_COPIES + _BASE_BYTES if storage and storage.copies_layers else needed


def check_space(needed: int, storage: Storage | None) -> str:
    """A sentence about the space that the build needs and has. Raises ImageError if there is not enough."""
    words = f"the build takes about {needed / 1e9:.1f} GB"
    if storage is None:
        return words
    free = shutil.disk_usage(nearest_existing(storage.folder)).free
    words += f" of {free / 1e9:.1f} GB free in {storage.folder} ({storage.driver})"
    if needed > free:
        room = "free some space, or set CONTAINERS_STORAGE_CONF to a storage.conf with another graphroot"
        raise ImageError(f"not enough disk space: {words}", OVERLAY_HINT if storage.copies_layers else room)
    return f"{words}; {OVERLAY_HINT}" if storage.copies_layers else words


def _asked(program: str, environment: Mapping[str, str]) -> Storage | None:
    command = [program, "info", *(("--format", "json") if Path(program).name == "podman" else ())]
    try:
        done = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=_STORAGE_SECONDS, check=False
        )
        store: dict[str, Any] = json.loads(done.stdout)["store"]
        known = {name.lower(): value for name, value in store.items()}  # podman's names start in lower case
        return Storage(known["graphdrivername"], Path(known["graphroot"]))
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError, AttributeError):
        return None
