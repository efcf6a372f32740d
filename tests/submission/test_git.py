"""Querying git never runs a program that the repository configures."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.batch_host import write_index

from clusterctl.launcher.submission.git import GitState, git_state, listed_files
from clusterctl.shared.errors import ConfigError

IDENTITY = ("-c", "user.name=x", "-c", "user.email=x@y")


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *IDENTITY, "-C", folder, *words], check=True, capture_output=True, text=True)
    return done.stdout


def state_of(folder: Path) -> GitState:
    state = git_state(folder)
    assert state
    return state


@pytest.fixture(autouse=True)
def own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own git configuration, empty."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    path = tmp_path / "gitconfig"
    path.touch()
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(path))
    return path


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One commit of three files, one of them modified since."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.py").write_text("print(1)\n")
    (folder / "notes.txt").write_text("one\n")
    (folder / ".gitattributes").write_text("*.txt filter=own diff=own\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "x")
    (folder / "train.py").write_text("print(2)\n")
    return folder


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A program that leaves a trace when it runs."""
    path = tmp_path / "trap"
    path.write_text(f'#!/bin/sh\ntouch "{tmp_path}/ran"\ncat 2>/dev/null\n')
    path.chmod(0o700)
    return path


def touched(path: Path) -> None:
    """Make git read the file, since its time differs from the index."""
    os.utime(path, (1, 1))


@pytest.mark.parametrize(
    "key",
    [
        *("core.fsmonitor", "diff.external", "diff.own.command", "diff.own.textconv"),
        *("filter.own.clean", "filter.own.process"),
    ],
)
def test_programs_configured_by_the_repository_do_not_run(repository: Path, trap: Path, key: str) -> None:
    git(repository, "config", key, str(trap))
    if key.startswith("filter"):
        git(repository, "config", "filter.own.required", "true")
        touched(repository / "notes.txt")
    else:
        (repository / "notes.txt").write_text("two\n")
    state = state_of(repository)
    assert state.patch
    assert state.dirty
    assert "+print(2)" in state.patch
    assert ("+two" in state.patch) is not key.startswith("filter")
    assert listed_files(repository).names == [".gitattributes", "notes.txt", "train.py"]
    assert not (trap.parent / "ran").exists()


def test_programs_configured_by_a_worktree_or_an_include_do_not_run(repository: Path, trap: Path) -> None:
    git(repository, "config", "extensions.worktreeConfig", "true")
    git(repository, "config", "--worktree", "filter.own.clean", str(trap))
    (repository / ".git" / "more").write_text(f'[filter "own"]\nprocess = {trap}\n')
    git(repository, "config", "include.path", "more")
    touched(repository / "notes.txt")
    state = state_of(repository)
    assert state.dirty
    assert not (trap.parent / "ran").exists()


def test_hooks_and_programs_of_a_submodule_do_not_run(repository: Path, trap: Path) -> None:
    inner = repository / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "model.py").write_text("")
    git(inner, "add", ".")
    git(inner, "commit", "-q", "-m", "x")
    git(repository, "add", "inner")
    git(repository, "commit", "-q", "-m", "y")
    git(inner, "config", "core.fsmonitor", str(trap))
    git(inner, "commit", "-q", "--allow-empty", "-m", "z")
    git(repository, "config", "diff.submodule", "diff")
    (trap.parent / "ran").unlink(missing_ok=True)
    for name in ("post-index-change", "post-checkout"):
        hook = repository / ".git" / "hooks" / name
        hook.write_bytes(trap.read_bytes())
        hook.chmod(0o700)
    touched(repository / "notes.txt")
    state = state_of(repository)
    assert state.patch
    assert "Subproject commit" in state.patch
    assert not (trap.parent / "ran").exists()


def test_a_missing_object_is_not_fetched(repository: Path, trap: Path) -> None:
    """A partial clone configures how objects are fetched; here, by a program."""
    blob = git(repository, "rev-parse", "HEAD:train.py").strip()
    (repository / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    git(repository, "config", "core.repositoryFormatVersion", "1")
    git(repository, "config", "extensions.partialClone", "origin")
    git(repository, "config", "protocol.ext.allow", "always")
    git(repository, "config", "remote.origin.url", f"ext::{trap}")
    git(repository, "config", "remote.origin.promisor", "true")
    state = state_of(repository)
    assert state.dirty is None
    assert not (trap.parent / "ran").exists()


def test_git_variables_of_the_environment_are_ignored(
    repository: Path, trap: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(trap))
    monkeypatch.setenv("GIT_DIFF_OPTS", "--unified=0")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    state = state_of(repository)
    assert state.dirty
    assert not (tmp_path / "ran").exists()


def test_filters_of_the_users_configuration_still_run(repository: Path, trap: Path, own_configuration: Path) -> None:
    """Such as git-lfs: without its filter, every large file would look changed."""
    own_configuration.write_text('[filter "own"]\nclean = tr a-z A-Z\n')
    git(repository, "add", "--renormalize", ".")
    git(repository, "commit", "-q", "-m", "upper case")
    git(repository, "config", "filter.own.clean", str(trap))
    touched(repository / "notes.txt")
    state = state_of(repository)
    assert not state.dirty
    assert not (trap.parent / "ran").exists()


def test_a_filter_that_cannot_be_overridden_leaves_the_patch_unknown(repository: Path, trap: Path) -> None:
    with (repository / ".git" / "config").open("a") as file:
        file.write(f'[filter "a=b"]\nclean = {trap}\n')
    state = state_of(repository)
    assert state.dirty is None
    assert not (trap.parent / "ran").exists()


@pytest.mark.parametrize(
    "setting",
    [
        *("color.ui=always", "diff.noprefix=true", "diff.mnemonicPrefix=true", "diff.external=false"),
    ],
)
def test_the_patch_applies_whatever_the_configuration(
    repository: Path, own_configuration: Path, setting: str, tmp_path: Path
) -> None:
    key, _, value = setting.partition("=")
    git(repository, "config", key, value)
    section, _, name = key.partition(".")
    own_configuration.write_text(f"[{section}]\n{name} = {value}\n")
    (repository / "binary").write_bytes(b"\0\1\2\xff")
    git(repository, "add", "binary")
    state = state_of(repository)
    assert state.patch
    assert state.dirty
    assert state.patch.startswith("diff --git a/binary b/binary\n")
    git(tmp_path, "clone", "-q", str(repository), "clone")
    subprocess.run(
        ["git", "-C", tmp_path / "clone", "apply"], input=state.patch.encode(errors="surrogateescape"), check=True
    )
    for name in ("train.py", "binary"):
        assert (tmp_path / "clone" / name).read_bytes() == (repository / name).read_bytes()


def test_an_unchanged_repository_is_clean_and_other_folders_have_no_state(repository: Path, tmp_path: Path) -> None:
    git(repository, "checkout", "-q", "train.py")
    state = state_of(repository)
    assert state.dirty is False
    assert git_state(tmp_path) is None
    assert listed_files(tmp_path).names == []


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """Another repository of the user's, with content that no project may show."""
    folder = tmp_path / "private"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "secret.py").write_text("SECRET\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "x")
    return folder


def replaced(path: Path, target: Path) -> None:
    """Replace a part of a repository with a link."""
    path.rename(path.with_name("gone"))
    path.symlink_to(target)


def lead_elsewhere(way: str, here: Path, there: Path) -> None:
    """Make the repository of one folder lead to that of another, in one of WAYS."""
    if way in WAYS[:5]:
        part = way.replace("HEAD", "refs/heads/master")
        replaced(here / way, there / part)
    elif way == "commondir":
        (here / ".git" / "commondir").write_text(f"{there}/.git\n")
    else:
        git(there, "worktree", "add", "-q", str(there.with_name("tree")))
        target = there / ".git" if way == "a file" else there / ".git" / "worktrees" / "tree"
        (here / ".git").rename(here / "gone")
        (here / ".git").write_text(f"gitdir: {target}\n")


WAYS = [
    *(".git", ".git/objects", ".git/refs", ".git/HEAD", ".git/index"),
    *("commondir", "a file", "the worktree of another"),
]


@pytest.mark.parametrize("way", WAYS)
def test_a_repository_that_leads_elsewhere_is_ignored_by_name(repository: Path, private: Path, way: str) -> None:
    (repository / ".gitignore").write_text("gone\n*.log\n")
    (repository / "x.log").touch()
    for here in (repository, private):
        git(here, "branch", "-M", "master")
    lead_elsewhere(way, repository, private)
    assert git_state(repository) is None
    listing = listed_files(repository)
    assert {*listing.names} == {".gitattributes", ".gitignore", "notes.txt", "train.py"}
    assert len(listing.ignored) == 1
    assert str(repository) in listing.ignored[0]


def test_another_working_tree_is_ignored_by_name(repository: Path, private: Path) -> None:
    git(repository, "config", "core.worktree", str(private))
    state = state_of(repository)
    assert "+print(2)" in (state.patch or "")
    assert "SECRET" not in (state.patch or "")
    listing = listed_files(repository)
    assert listing.names == [".gitattributes", "notes.txt", "train.py"]
    assert listing.ignored == [f"core.worktree = {private} in {repository}/.git"]


def test_objects_of_another_repository_make_no_patch(repository: Path, private: Path) -> None:
    (repository / ".git" / "objects" / "info" / "alternates").write_text(f"{private}/.git/objects\n")
    (repository / ".git" / "HEAD").write_text(git(private, "rev-parse", "HEAD"))
    assert state_of(repository).patch is None
    (line,) = listed_files(repository).ignored
    assert "alternates" in line


@pytest.mark.parametrize("name", ["../private/secret.py", "/etc/hostname", ".git/config", "d/../../private/secret.py"])
def test_an_index_with_names_outside_makes_no_patch(repository: Path, private: Path, name: str) -> None:
    write_index(repository, [name, "train.py"])
    assert state_of(repository).patch is None


def test_a_submodule_that_leads_elsewhere_is_not_in_the_patch(repository: Path, private: Path) -> None:
    write_index(repository, ["train.py"], {"inner": git(repository, "rev-parse", "HEAD").strip()})
    (repository / "inner").mkdir()
    (repository / "inner" / ".git").write_text(f"gitdir: {private}/.git\n")
    state = state_of(repository)
    assert "+print(2)" in (state.patch or "")
    assert git(private, "rev-parse", "HEAD").strip() not in (state.patch or "")


def test_worktrees_submodules_and_separate_repositories_of_git_are_used(repository: Path, tmp_path: Path) -> None:
    tree, outer, apart = tmp_path / "tree", tmp_path / "outer", tmp_path / "apart"
    git(repository, "worktree", "add", "-q", str(tree))
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repository), "inner")
    git(tmp_path, "init", "-q", f"--separate-git-dir={tmp_path}/elsewhere", str(apart))
    git(apart, "pull", "-q", str(repository))
    assert git_state(apart) is None
    (line,) = listed_files(apart).ignored
    assert line == f"{apart}/.git leads to {tmp_path}/elsewhere, whose core.worktree is not {apart}"
    git(apart, "config", "core.worktree", str(apart))
    for folder in (tree, outer / "inner", apart):
        (folder / "train.py").write_text("print(3)\n")
        assert "+print(3)" in (state_of(folder).patch or ""), folder
        assert listed_files(folder) == ([".gitattributes", "notes.txt", "train.py"], [])
    below = outer / "inner" / "below"
    below.mkdir()
    (below / "new.py").touch()
    assert listed_files(below) == (["new.py"], [])


@pytest.mark.parametrize(
    "name",
    [
        *(
            "HEAD",
            "config",
            "index",
            "packed-refs",
            "commondir",
            "info/exclude",
            "refs/heads/x",
            "objects/info/alternates",
        )
    ],
)
def test_pipes_in_a_repository_are_not_waited_for(repository: Path, name: str) -> None:
    path = repository / ".git" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert listed_files(repository).ignored == [f"{path} is neither a file nor a folder"]
    assert git_state(repository) is None


def test_a_pipe_that_the_configuration_names_is_not_waited_for(repository: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    git(repository, "config", "core.excludesFile", str(tmp_path / "pipe"))
    assert listed_files(repository) == ([".gitattributes", "notes.txt", "train.py"], [])


def test_a_pipe_in_place_of_gitignore_is_named(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterctl.launcher.submission.git._ANSWER_SECONDS", 0.5)
    (repository / "data").mkdir()
    os.mkfifo(repository / "data" / ".gitignore")
    with pytest.raises(ConfigError, match=r"data/\.gitignore") as raised:
        listed_files(repository)
    assert raised.value.hint == f"remove it: rm {repository}/data/.gitignore"


def test_a_folder_that_looks_like_a_repository_is_not_used_as_one(repository: Path, private: Path) -> None:
    """Git would take it for a bare repository, whose configuration names any working tree."""
    bare = repository / "bare"
    git(private, "clone", "-q", "--bare", str(private), str(bare))
    git(bare, "config", "core.worktree", str(private))
    git(bare, "config", "core.bare", "false")
    assert git_state(bare) is None
    assert "secret.py" not in listed_files(bare).names
