"""Receives a project from another machine: its manifest, and only the files that are missing here.

A manifest lists the files with their digests; its own digest is the project's `tree`. Both machines use the digests of
snapshots, so files that any project of the same runs folder has are not sent again.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

from clusterctl.launcher.submission.code_files import CodeFile, KnownDigests, open_file, project_files
from clusterctl.launcher.submission.git import git_state, leads_outside
from clusterctl.launcher.submission.snapshot import digest_of, digests_of, find_code_of, take_snapshot
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.record.files import read_whole, write_text
from clusterctl.shared.record.layout import SHARED_FILES, TREES, code_folder
from clusterctl.shared.record.ownership import make_private, require_own
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from clusterctl.launcher.config.sent import ClientData, SentProject
    from clusterctl.launcher.config.shown import ProgressListener
    from clusterctl.launcher.submission.snapshot import Code

_SIZE = struct.Struct(">Q")
_PIECE = 2**18
_PLACE = "project"  # any name


class LocalProject:
    """A local folder to send."""

    def __init__(self, path: Path, known: Path, *, large: bool, progress: ProgressListener) -> None:
        """Compute the digests that are not in the file `known`. Raises what `project_files` raises."""
        digests = KnownDigests(known)
        self.path = path
        files, self.ignored = project_files(path, path / ".git", large=large)
        self.files = sorted(files)
        found = digests_of(_PLACE, self.files, digests, progress)
        make_private(known.parent)
        with suppress(OSError):  # without it the next submission reads everything again
            digests.save()
        rows = [(file.name, found[f"{_PLACE}/{file.name}"], file.size, file.mode, file.link) for file in self.files]
        self.manifest = json.dumps(rows).encode()

    @property
    def tree(self) -> str:
        return _tree(self.manifest)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def git(self) -> tuple[str | None, str | None]:
        """The commit, and a patch of uncommitted changes."""
        state = git_state(self.path)
        return (state.commit, state.patch) if state else (None, None)

    def answer(self, question: dict[str, object]) -> Iterator[bytes]:
        """The pieces of the answer to a question of `received`."""
        numbers = question.get("files")
        if not isinstance(numbers, list):
            yield zlib.compress(self.manifest, 1)
            return
        packer = zlib.compressobj(1)
        for number in numbers:
            if type(number) is not int or not 0 <= number < len(self.files) or self.files[number].link is not None:
                raise ValueError("no such file of the project")
            path = self.files[number].source
            # A link is in the manifest as its target's name. What it leads to is not part of the project.
            with os.fdopen(open_file(self.files[number]), "rb") as source:
                status = os.fstat(source.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ConfigError(f"no longer a regular file: {path}", "submit again")
                size = status.st_size
                yield packer.compress(_SIZE.pack(size))
                while size > 0 and (piece := source.read(min(_PIECE, size))):
                    size -= len(piece)
                    yield packer.compress(piece)
                if size:
                    raise ConfigError(f"file was truncated while reading: {path}", "submit again when it is complete")
        yield packer.flush()


def received(runs: Path, project: Path, client: ClientData, progress: ProgressListener) -> Code:
    """Receive the code of a run from the user's machine, where its `project` is, and take its snapshot.

    Raises ConfigError if it was not sent, or if it changes while being sent.
    """
    sent = client.project(project)
    if sent is None:
        raise ConfigError(f"code: not sent with the job: {project}", "set it in the job file, not in a sweep")
    folder = make_private(code_folder(runs))
    shared = make_private(folder / SHARED_FILES)
    for own in (folder, shared):
        require_own(own, "runs must be in a folder that you own: see `runs` in the cluster file")
    files: list[CodeFile] = []
    digests: dict[str, str] = {}
    for name, digest, size, mode, link in json.loads(_manifest(folder, sent, client)):
        # A digest becomes the name of a file; that of a link is followed by its target.
        if leads_outside(name) or "/" in digest.partition(" ")[0]:
            raise ConfigError(f"code: invalid file name: {name!r}", "submit again")
        digests[name] = digest
        files.append(CodeFile(name, f"{shared}/{digest}" if link is None else name, size, mode, link))
    code = find_code_of(runs, files, digests)
    if code.is_new:
        present = {*os.listdir(shared)}  # noqa: PTH208 - only names are needed
        missing = []
        for number, file in enumerate(files):  # each content once
            if file.link is None and (digest := digests[file.name]) not in present:
                present.add(digest)
                missing.append(number)
        if missing:
            size = sum(files[number].size for number in missing)
            progress.begin(f"receiving the code: {plural(len(missing), 'file')}", size)
            pieces = client.ask({"project": sent.path, "files": missing})
            _store(((files[number], digests[files[number].name]) for number in missing), pieces, shared, progress)
        take_snapshot(code, progress)
    return code


def _tree(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()[:20]


def _manifest(folder: Path, sent: SentProject, client: ClientData) -> bytes:
    """The project's manifest: kept from an earlier submission, or requested."""
    kept = make_private(folder / TREES) / sent.tree
    with suppress(OSError):
        manifest = read_whole(kept)
        if _tree(manifest) == sent.tree:
            return manifest
    manifest = zlib.decompress(b"".join(client.ask({"project": sent.path})))
    if _tree(manifest) != sent.tree:
        raise ConfigError(f"code: changed while being sent: {sent.path}", "submit again")
    write_text(kept, manifest.decode())
    return manifest


def _store(
    wanted: Iterable[tuple[CodeFile, str]], pieces: Iterable[bytes], shared: Path, progress: ProgressListener
) -> None:
    """Write the files to the folder shared by all snapshots. Raises ConfigError if one differs from the manifest."""
    stream = Unpacked(pieces)
    for file, digest in wanted:
        aside = shared.with_name(f".{digest}.{os.urandom(4).hex()}")
        (size,) = _SIZE.unpack(b"".join(stream.read(_SIZE.size)))
        try:
            with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as target:
                for piece in stream.read(size):
                    target.write(piece)
                    progress.advance(len(piece))
                os.fchmod(target.fileno(), file.mode)
            if digest_of(file._replace(source=str(aside), size=size)) != digest:
                raise ConfigError(f"code: changed while being sent: {file.name}", "submit again")
            aside.rename(shared / digest)
        finally:
            aside.unlink(missing_ok=True)


class Unpacked:
    """Reads decompressed bytes from compressed pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        unpacker = zlib.decompressobj()
        self._pieces = (unpacker.decompress(piece) for piece in pieces)
        self._rest = memoryview(b"")

    def read(self, size: int) -> Iterator[bytes]:
        """Pieces with a total of `size` bytes. Raises ConfigError if there are fewer."""
        while size > 0:
            if not self._rest:
                piece = next(self._pieces, None)
                if piece is None:
                    raise ConfigError("code: received data is incomplete", "submit again")
                self._rest = memoryview(piece)
                continue
            taken = self._rest[:size]
            self._rest = self._rest[len(taken) :]
            size -= len(taken)
            yield bytes(taken)
