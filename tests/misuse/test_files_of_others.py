"""Files and folders that other users own or may write: nothing is run from them or because of them."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.mistake import CONFIG, NOT_FOUND, OTHER, USAGE, Desk, check_message

import clusterctl
from clusterctl.launcher.api.clean import find_unused
from clusterctl.launcher.api.completions import answer
from clusterctl.launcher.api.submitting.submit import submission_of
from clusterctl.launcher.config import load_cluster, names, resolve
from clusterctl.launcher.config.places import find_file
from clusterctl.launcher.observe.runs import find_run, newest_first
from clusterctl.launcher.slurm import Slurm
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.record.files import read_json, write_json
from clusterctl.shared.record.layout import RunDir, code_folder
from clusterctl.shared.spec import Cluster

Fabricate = Callable[..., RunDir]
SOMEONE = 4242
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def give_away(path: Path) -> None:
    os.chown(path, SOMEONE, -1)


def open_to_others(path: Path) -> None:
    path.chmod(0o770)


def submitted(desk: Desk) -> clusterctl.Run:
    desk.use_slurm(sbatch="echo Submitted batch job 7", squeue="exit 0")
    return clusterctl.submit("synthetic", "site")


DAMAGE = [
    pytest.param(open_to_others, "writable by others", "chmod go-w", id="open"),
    pytest.param(give_away, "owned by another user", "", id="foreign", marks=as_root),
]


@pytest.mark.parametrize("part", ["", ".code", ".code/.files", ".code/[!.]*"])
@pytest.mark.parametrize(("damage", "expected", "hint"), DAMAGE)
def test_code_that_others_may_replace_is_not_submitted(
    desk: Desk, part: str, damage: Callable[[Path], None], expected: str, hint: str
) -> None:
    first = submitted(desk)
    (folder,) = desk.runs.glob(part) if part else [desk.runs]
    damage(folder)
    if part.endswith(".files"):  # only new copies use it
        next(desk.runs.glob(".code/[!.]*")).rename(desk.folder / "gone")
    with pytest.raises(ConfigError, match=expected) as caught:
        clusterctl.submit("synthetic", "site")
    assert str(folder) in caught.value.message
    assert hint in caught.value.hint
    assert desk.run_directories() == [first.path]


RANDOM = "20260102-030405-00a1"


def plant(kind: str, place: Path, folder: Path) -> None:
    """Put something of another user in place of a folder that a submission would make."""
    if kind == "dangling link":
        place.symlink_to(folder / "new")
    else:
        place.mkdir(mode=0o755)
    os.chown(place, SOMEONE, -1, follow_symlinks=False)


@as_root
@pytest.mark.parametrize("kind", ["dangling link", "folder"])
@pytest.mark.parametrize("name", [".code", ".code/.files", ".sweeps", f"synthetic-{RANDOM}", f"synthetic-{RANDOM}.1"])
def test_nothing_is_written_where_another_user_has_been(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    for module in ("submit", "start"):
        monkeypatch.setattr(f"clusterctl.launcher.api.submitting.{module}.new_suffix", lambda: RANDOM)
    desk.use_slurm(sbatch="echo Submitted batch job 7", squeue="exit 0")
    desk.runs.mkdir()
    elsewhere = desk.folder / "elsewhere"
    elsewhere.mkdir()
    (desk.runs / name).parent.mkdir(exist_ok=True, mode=0o700)
    plant(kind, desk.runs / name, elsewhere)
    submit = clusterctl.sweep if name.endswith(("sweeps", ".1")) else clusterctl.submit
    with pytest.raises(ConfigError) as caught:
        submit("synthetic", "site", **({"axes": ["train.seed=0..2"]} if submit is clusterctl.sweep else {}))
    assert str(desk.runs / name) in caught.value.message
    assert caught.value.hint
    assert [*elsewhere.iterdir()] == []
    assert desk.asked("sbatch") == 0
    assert [path for path in desk.run_directories() if path.name != name] == []


@as_root
def test_a_script_that_somebody_exchanges_is_not_submitted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.use_slurm(sbatch='cat >"$CLUSTERCTL_RUNS/../seen"; echo Submitted batch job 7', squeue="exit 0")
    (desk.folder / "theirs").mkdir()
    from clusterctl.launcher.submission import executor

    def exchanged(path: Path, text: str) -> None:
        """Write the script; then the runs folder is another one, with an own script in the same place."""
        path.write_text(text)
        desk.runs.rename(desk.folder / "theirs" / "runs")
        path.parent.mkdir(parents=True, mode=0o777)
        path.write_text("#!/bin/bash\nevil")
        os.chown(desk.runs, SOMEONE, -1)

    monkeypatch.setattr(executor, "write_text", exchanged)
    with pytest.raises(ConfigError, match="owned by another user"):
        clusterctl.submit("synthetic", "site")
    assert not (desk.folder / "seen").exists()


@contextmanager
def user(number: int) -> Iterator[None]:
    os.seteuid(number)
    try:
        yield
    finally:
        os.seteuid(0)


@as_root
def test_many_users_share_a_runs_folder_of_root(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="clusterctl-test-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        runs, project = folder / "runs", folder / "project"
        runs.mkdir()
        runs.chmod(0o1777)
        project.mkdir()
        (folder / "sbatch").write_text('#!/bin/sh\necho "Submitted batch job $$"\n')
        (folder / "sbatch").chmod(0o755)
        slurm = Slurm(lambda command: str(folder / command), dict(os.environ))
        resolved = resolve(None, Cluster(name="site", runs=str(runs)), [], {}, project, program=["true"])
        own = replace(resolved, cluster=Cluster(name="site", runs=str(folder / "own")))
        first = submission_of(own, slurm)
        first.check()
        first.send()  # imports all modules
        found = {}
        for number in (SOMEONE, SOMEONE + 1):
            monkeypatch.setenv("HOME", str(folder / str(number)))
            monkeypatch.setenv("XDG_RUNTIME_DIR", "")
            (folder / str(number)).mkdir()
            os.chown(folder / str(number), number, -1)
            with user(number):
                one = submission_of(resolved, slurm)
                one.check()
                one.send()
                found[number] = one.runs[0].plan.run
                assert found[number].code.resolve().is_relative_to(code_folder(runs))
                assert find_unused(runs) == []
                assert [*newest_first(runs)] == [found[number]]  # others' runs are private
                assert find_run(runs, "true") == found[number]
                assert [find_run(runs, run.id) for run in found.values()] == [*found.values()]
        owners = {path.name: path.stat().st_uid for path in runs.iterdir()}
        assert owners == {
            **{f".code-{number}": number for number in found},
            **{run.path.name: number for number, run in found.items()},
        }


def test_a_shared_runs_folder_with_the_sticky_bit_is_accepted(desk: Desk) -> None:
    desk.runs.mkdir()
    desk.runs.chmod(0o1777)
    assert submitted(desk).path.is_dir()


@pytest.mark.parametrize("part", [".", "submitit", "code"])
@pytest.mark.parametrize(("damage", "expected", "hint"), DAMAGE)
@pytest.mark.parametrize("command", ["resume", "rerun"])
def test_a_run_that_others_may_change_is_not_submitted_again(
    desk: Desk, command: str, part: str, damage: Callable[[Path], None], expected: str, hint: str
) -> None:
    run = submitted(desk)
    write_json(run.path / "cancel.json", {"time": 1, "by": "me"})
    damage((run.path / part).resolve())
    before = desk.asked("sbatch")
    with pytest.raises(ConfigError) as caught:
        getattr(run, command)()
    if part == "." and expected.startswith("owned"):
        expected = "belongs to user"  # an earlier check finds that the run is not this user's
    assert expected in caught.value.message
    assert hint in caught.value.hint
    assert desk.asked("sbatch") == before


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def fail(*_: object) -> None:
        raise AssertionError("it takes too long")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", ["named pipe", "device without end", "endless file"])
@pytest.mark.parametrize(
    "command",
    [
        "submit ./x.toml --dry-run",
        "submit synthetic --cluster ./x.toml --dry-run",
        "submit synthetic --sweep-file x.toml --dry-run",
        "init --from x.toml",
        "image import ./x.toml",
    ],
)
def test_a_file_that_is_none_is_refused_at_once(desk: Desk, command: str, kind: str) -> None:
    path = desk.project / "x.toml"
    if kind == "named pipe":
        os.mkfifo(path)
    elif kind == "device without end":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(2**38)
    with at_most(20):
        code, _, err = desk.type(command)
    assert code in (OTHER, USAGE, CONFIG, NOT_FOUND)
    *_, error, hint = err.splitlines()
    assert error.startswith("error: ")
    assert "x.toml" in error
    assert hint.startswith("hint: ")


@pytest.mark.parametrize("typed", ["submit x --set train.l", "status --cluster x "])
def test_completion_does_not_wait_for_a_named_pipe(desk: Desk, typed: str) -> None:
    for kind in ("jobs", "cluster"):
        (desk.project / kind).mkdir()
        os.mkfifo(desk.project / kind / "x.toml")
    with at_most(5):
        answer("bash", f"clusterctl {typed}", typed.rpartition(" ")[2])


def test_doctor_fails_a_runs_folder_that_others_may_write(desk: Desk) -> None:
    desk.runs.mkdir()
    desk.runs.chmod(0o777)
    code, out, _ = desk.type("doctor")
    assert code == 1
    assert re.search(rf"FAIL +runs +{re.escape(str(desk.runs))} .*is writable by others", out)
    assert f"chmod go-w {desk.runs}" in out


def write_cluster(folder: Path, name: str, partition: str) -> Path:
    path = folder / "cluster" / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'partition = "{partition}"\n')
    return path


def test_a_project_does_not_redefine_the_users_clusters(desk: Desk) -> None:
    configuration = desk.folder / "home" / ".config" / "clusterctl"
    for name in ("mine", "local"):
        write_cluster(desk.project, name, "theirs")
    write_cluster(configuration, "mine", "mine")
    write_cluster(desk.project, "new", "theirs")
    assert load_cluster("mine").partition == "mine"
    assert load_cluster("local").kind == "emulator"
    assert load_cluster("new").partition == "theirs"
    assert load_cluster("./cluster/mine.toml").partition == "theirs"
    assert names("cluster", Path.cwd())["mine"].parent == configuration / "cluster"
    write_cluster(configuration, "local", "mine")  # users may redefine the shipped clusters
    assert load_cluster("local").partition == "mine"


def test_a_project_may_redefine_a_job(desk: Desk) -> None:
    path = desk.write("jobs/cora.toml", "")
    assert find_file("jobs", "cora", Path.cwd()) == path


@as_root
@pytest.mark.parametrize(("kind", "noun"), [("cluster", "cluster"), ("jobs", "job")])
def test_another_users_file_is_used_only_by_path(desk: Desk, kind: str, noun: str) -> None:
    path = desk.write(f"{kind}/x.toml", "")
    give_away(path)
    with pytest.raises(ConfigError, match=f"{noun} x is owned by another user: .* \\(user {SOMEONE}\\)") as caught:
        find_file(kind, "x", Path.cwd())
    assert caught.value.hint.endswith(f"./{kind}/x.toml")
    assert find_file(kind, f"./{kind}/x.toml", Path.cwd()) == path


@as_root
@pytest.mark.parametrize("part", [".", "run.json"])
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        *(("status RUN", 0), ("logs RUN", 0), ("why RUN", 0), ("report RUN", 0), ("monitor --once RUN", 0)),
        *(("cancel --yes RUN", CONFIG), ("resume RUN", CONFIG), ("release RUN", CONFIG), ("attach RUN true", CONFIG)),
    ],
)
def test_slurm_is_not_asked_about_another_users_run(
    desk: Desk, fabricate: Fabricate, part: str, command: str, expected: int
) -> None:
    """Slurm's commands load the plugins that slurm.conf names: another user's slurm.conf must not be used."""
    used = desk.folder / "slurm_conf"
    desk.use_slurm(**dict.fromkeys(("squeue", "scancel", "sinfo", "scontrol", "srun"), f'echo "$SLURM_CONF" >>{used}'))
    run = fabricate(files={"submission.json": {"job_id": "7"}, "attempts/0/host.json": {"start": 1}})
    record = read_json(run.run_json)
    record["cluster"] |= {"slurm_conf": "/evil/slurm.conf", "polling_floor": 0}
    write_json(run.run_json, record)
    give_away(run.path / part)
    code, out, err = desk.type(command.replace("RUN", run.id))
    assert code == expected, err
    asked = used.read_text() if used.exists() else ""
    assert "/evil" not in asked
    if expected:
        check_message(err, f"{run.id} belongs to", "only its owner")
        assert not asked
    elif command.startswith("status"):
        assert run.id in out
        assert "only its owner" in err
        assert not asked


@as_root
def test_slurm_is_asked_about_your_own_run_with_its_slurm_conf(desk: Desk, fabricate: Fabricate) -> None:
    used = desk.folder / "slurm_conf"
    desk.use_slurm(squeue=f'echo "$SLURM_CONF" >>{used}')
    run = fabricate(files={"submission.json": {"job_id": "7"}})
    record = read_json(run.run_json)
    record["cluster"] |= {"slurm_conf": "/my/slurm.conf", "polling_floor": 0}
    write_json(run.run_json, record)
    desk.type("status")
    assert used.read_text() == "/my/slurm.conf\n"
