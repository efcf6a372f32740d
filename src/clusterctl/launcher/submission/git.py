"""Queries git about a folder without running any program that the repository configures, or reading other folders.

A repository's configuration may name programs: a file monitor, hooks, diff drivers, filters, transports. It may come
from an unpacked archive. The user's own configuration is trusted, so filters configured there (git-lfs) are used.

A repository may also lead elsewhere: `.git` may be a link or a file, objects and references may be links, and the
working tree may be any folder. What is used must be inside the project, or in a repository that names the project as
its working tree, as git's own worktrees and submodules do.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.shared.errors import ConfigError
from clusterctl.shared.record.files import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterator

# Produces a patch for `git apply`, whatever the configuration. Submodules are ignored: looking inside them would use
# their own configuration.
_DIFF = (
    *("diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--no-relative", "--unified=3"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--ignore-submodules=dirty", "--submodule=short"),
)
_SETTINGS = r"^(filter\..*\.(clean|smudge|process|required)|core\.(worktree|excludesfile))$"
_OF_THE_REPOSITORY = ("local", "worktree")
# What git reads in a repository, apart from folders of hooks, logs and other repositories.
_READ_BY_GIT = re.compile(
    r"HEAD|config|config\.worktree|index|sharedindex\..*|packed-refs|shallow|commondir|gitdir|objects|refs|reftable|info"
)
_FOLDERS_READ_BY_GIT = ("info", "objects", "objects/info", "objects/pack", "reftable")
_ANSWER_SECONDS = 10
_LISTING_SECONDS = 600  # of a large project on a slow file system
_LARGEST_POINTER = 2**16  # bytes
_OUTSIDE = re.compile(r"(?:^|/)(?:\.{0,2}|\.git)(?:/|$)", re.IGNORECASE)


class GitState(NamedTuple):
    """The commit of a folder and a patch of changes to its tracked files; `patch` is None if git cannot make one."""

    commit: str
    patch: str | None

    @property
    def dirty(self) -> bool | None:
        return None if self.patch is None else bool(self.patch)


class ListedFiles(NamedTuple):
    """The files of a folder, and one line for each part of the repository that was ignored."""

    names: list[str]
    ignored: list[str]


class _Repository(NamedTuple):
    """The repository of a folder. Without `git_dir`, it is ignored as a whole."""

    folder: Path
    top: Path  # of the working tree
    git_dir: str = ""
    commit: str = ""
    settings: tuple[str, ...] = ()  # for git's command line
    can_compare: bool = False
    ignored: tuple[str, ...] = ()

    def ask(self, *words: str) -> str | None:
        """The output of a git command in the folder; None if it fails."""
        place = (f"--git-dir={self.git_dir}", f"--work-tree={self.top}")
        answer = _git(self.folder, *place, *self.settings, *words)
        return answer.stdout if answer and answer.returncode == 0 else None


def leads_outside(name: str) -> bool:
    """Whether `name`, from an index or another machine, is no path below a folder, or is part of a repository."""
    return _OUTSIDE.search(name) is not None


def git_state(folder: Path) -> GitState | None:
    """The state of `folder`; None without a repository, a commit or git, or if the repository leads elsewhere."""
    repository = _repository(folder)
    if repository is None or not repository.git_dir or not repository.commit:
        return None
    entries = repository.ask("ls-files", "-z", "--cached", "--stage") if repository.can_compare else None
    tracked = [entry.partition("\t")[::2] for entry in (entries or "").split("\0")[:-1]]
    if entries is None or any(leads_outside(name) for _, name in tracked):  # git would read outside of the folder
        return GitState(repository.commit, None)
    # Git reads the commit of each submodule from the repository that its `.git` names.
    submodules = [repository.folder / name for facts, name in tracked if facts.startswith("160000")]
    inside = all(_is_inside(repository, submodule) for submodule in submodules)
    options = _DIFF if inside else (*_DIFF, "--ignore-submodules=all")
    return GitState(repository.commit, repository.ask(*options, "HEAD", "--", "."))


def listed_files(folder: Path) -> ListedFiles:
    """The files below `folder` that git tracks or would track; none without a repository or git.

    Raises ConfigError if git cannot finish.
    """
    repository = _repository(folder)
    if repository is None:
        return ListedFiles([], [])
    words = ["ls-files", "-z", "--others", "--exclude-standard"]
    with tempfile.TemporaryDirectory(prefix="clusterctl-") as nothing:
        if repository.git_dir:
            words.append("--cached")
            git_dir = repository.git_dir
        else:  # only the files named .gitignore decide
            for name in ("objects", "refs"):
                (Path(nothing) / name).mkdir()
            (Path(nothing) / "HEAD").write_text("ref: refs/heads/main\n")
            git_dir = nothing
        place = (f"--git-dir={git_dir}", f"--work-tree={repository.top}")
        answer = _git(repository.folder, *place, *repository.settings, *words, is_listing=True)
    if answer is None:
        hint = "set `code` to the folder that contains only the program"
        raise ConfigError(f"code: git has not listed the files within {_LISTING_SECONDS} s: {folder}", hint)
    output = "" if answer.returncode else answer.stdout
    return ListedFiles([name for name in dict.fromkeys(output.split("\0")) if name], [*repository.ignored])


def _is_inside(repository: _Repository, submodule: Path) -> bool:
    target = _pointed_at(submodule / ".git")
    places = (os.path.realpath(repository.top), os.path.realpath(repository.git_dir))
    return target is None or (
        os.path.realpath(submodule) == str(submodule)
        and any(_is_below(target, place) for place in places)
        and not any(_strange_parts(target, places))
        and not os.path.lexists(f"{target}/commondir")
    )


def _repository(folder: Path) -> _Repository | None:
    """The repository that git finds for `folder`; None without one, or without git."""
    folder = folder.resolve()
    tops = [parent for parent in (folder, *folder.parents) if os.path.lexists(parent / ".git")]
    if not tops or shutil.which("git") is None:
        return None
    first = _pointed_at(tops[0] / ".git")
    if first and (strange := next(_strange_parts(first, (first,)), "")):
        return _Repository(folder, tops[0], ignored=(strange,))
    # The search for it checks the owner of what it finds. `--work-tree` overrides `core.worktree`.
    asked = ("rev-parse", "--absolute-git-dir", "--git-common-dir", "HEAD")
    answer = _git(folder, f"--work-tree={tops[0]}", *asked)
    if answer is None:
        return _Repository(folder, tops[0], ignored=(f"{tops[0]}/.git: git does not answer",))
    lines = answer.stdout.split("\n")
    if answer.returncode and len(lines) < 3:
        return None
    git_dir, common = lines[0], os.path.realpath(folder / lines[1])
    top = next((top for top in tops if _pointed_at(top / ".git") == os.path.realpath(git_dir)), None)
    if top is None:
        return _Repository(folder, tops[0], ignored=(f"the repository {git_dir}: it is not at {tops[0]}/.git",))
    if problem := _leads_elsewhere(top, os.path.realpath(git_dir), common):
        return _Repository(folder, top, ignored=(problem,))
    return _configured(_Repository(folder, top, git_dir, lines[2] if answer.returncode == 0 else ""), common)


def _leads_elsewhere(top: Path, git_dir: str, common: str) -> str:
    """What is wrong if the repository of the working tree `top` is neither inside it nor names it; else empty."""
    place = top / ".git"
    inside = _is_below(git_dir, os.path.realpath(top))
    if common != git_dir:  # a worktree made by `git worktree add`
        parent, kind = os.path.split(os.path.dirname(git_dir))  # noqa: PTH120
        back = os.path.join(git_dir, _pointer(f"{git_dir}/gitdir"))  # noqa: PTH118
        named = place.is_file() and not place.is_symlink() and os.path.basename(back) == ".git"  # noqa: PTH119
        if (parent, kind) != (common, "worktrees") or not named or os.path.realpath(f"{back}/..") != str(top):
            return f"{place} leads to {common}, which does not know it as a worktree"
    elif not inside:  # a submodule, or `git init --separate-git-dir`
        answer = _git(Path("/"), f"--git-dir={git_dir}", "rev-parse", "--show-toplevel")
        if answer is None or answer.returncode or os.path.realpath(answer.stdout.rstrip("\n")) != str(top):
            return f"{place} leads to {git_dir}, whose core.worktree is not {top}"
    return next(_strange_parts(git_dir, (git_dir, common)), "") or next(_strange_parts(common, (common,)), "")


def _strange_parts(git_dir: str, places: tuple[str, ...]) -> Iterator[str]:
    """Parts of a repository that git would wait for, or that are links out of `places`."""
    below_refs = (path for path, _, _ in os.walk(f"{git_dir}/refs"))  # follows no links
    for folder in (git_dir, *(f"{git_dir}/{name}" for name in _FOLDERS_READ_BY_GIT), *below_refs):
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if folder == git_dir and not _READ_BY_GIT.fullmatch(entry.name):
                    continue
                if entry.is_symlink():
                    target = os.path.realpath(entry.path)
                    if not any(_is_below(target, place) for place in places):
                        yield f"{entry.path} is a link to {target}"
                if not (entry.is_file() or entry.is_dir()) and os.path.exists(entry.path):  # noqa: PTH110
                    yield f"{entry.path} is neither a file nor a folder"


def _configured(repository: _Repository, common: str) -> _Repository:
    """Replace the repository's filters with the user's, or with none, and ignore what leads elsewhere.

    Filters run when git compares files. Reading the configuration runs nothing.
    """
    place = f"--git-dir={repository.git_dir}", f"--work-tree={repository.top}"
    answer = _git(repository.folder, *place, "config", "--show-scope", "-z", "--get-regexp", _SETTINGS)
    if answer is None or answer.returncode not in (0, 1):  # git before 2.26; 1 means that nothing was found
        return repository
    trusted: dict[str, str] = {}
    replaced: set[str] = set()
    ignored: list[str] = []
    scopes, settings = (answer.stdout.split("\0")[start::2] for start in (0, 1))
    for scope, setting in zip(scopes, settings, strict=False):
        key, _, value = setting.partition("\n")
        if scope not in _OF_THE_REPOSITORY:
            trusted[key] = value
        elif key == "core.worktree":
            if os.path.realpath(os.path.join(repository.git_dir, value)) != str(repository.top):  # noqa: PTH118
                ignored.append(f"core.worktree = {value} in {repository.git_dir}")
        elif key != "core.excludesfile":
            replaced.add(key)
        elif not (repository.top / os.path.expanduser(value)).is_file():  # noqa: PTH111 - never raises
            replaced.add(key)  # git would wait for a pipe
    can_compare = not any("=" in key for key in replaced)  # `-c` cannot override such a key
    alternates = f"{common}/objects/info/alternates"
    if _pointer(alternates):
        can_compare = False
        ignored.append(f"objects of other repositories, so there is no patch: {alternates}")
    words = [word for key in sorted(replaced) if "=" not in key for word in ("-c", f"{key}={trusted.get(key, '')}")]
    return repository._replace(settings=tuple(words), can_compare=can_compare, ignored=tuple(ignored))


def _pointed_at(place: Path) -> str | None:
    """The folder that the `.git` at `place` is, or leads to; None if it is nothing of that kind."""
    if place.is_dir():
        return os.path.realpath(place)
    pointer = _pointer(os.fspath(place))
    if not pointer.startswith("gitdir: "):
        return None
    return os.path.realpath(place.parent / pointer.removeprefix("gitdir: "))


def _pointer(path: str) -> str:
    """The line in a small file that names another; empty if there is none."""
    with suppress(OSError):
        return os.fsdecode(read_regular(Path(path), lambda file: file.read(_LARGEST_POINTER))).strip("\n")
    return ""


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _git(folder: Path, *words: str, is_listing: bool = False) -> subprocess.CompletedProcess[str] | None:
    """Run git; None if it does not answer in time. Raises ConfigError if a listing cannot end."""
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-C", os.fspath(folder), *words]
    # Without variables that control git (inside a hook, say), but with the user's configuration. Git must write nothing
    # and fetch no objects: a partial clone names the program that would fetch them.
    kept = {name: value for name, value in os.environ.items() if not re.match(r"GIT_(?!CONFIG|CEILING)", name)}
    with subprocess.Popen(
        command,
        env=kept | {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            for seconds in (_ANSWER_SECONDS, _LISTING_SECONDS) if is_listing else (_ANSWER_SECONDS,):
                with suppress(subprocess.TimeoutExpired):
                    output, _ = process.communicate(timeout=seconds)
                    return subprocess.CompletedProcess(
                        command, process.returncode, output.decode(errors="surrogateescape")
                    )
                if is_listing:  # git waits for a file named .gitignore that is a pipe, say
                    rules = (Path(path, ".gitignore") for path, _, names in os.walk(folder) if ".gitignore" in names)
                    if blocking := next((one for one in rules if not one.is_symlink() and not one.is_file()), None):
                        hint = f"remove it: rm {shlex.quote(str(blocking))}"
                        raise ConfigError(f"code: git waits for a file that is not a regular one: {blocking}", hint)
        finally:
            process.kill()
    return None
