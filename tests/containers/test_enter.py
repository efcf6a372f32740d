"""Running inside an image without pyxis: the command's environment, and replacing the process."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.images import ThinImage, make_thin
from support.scenario import wait_until

import clusterctl
from clusterctl.launcher.containers import unpacked
from clusterctl.launcher.containers.enter import own_workdir, program
from clusterctl.launcher.containers.runtimes import FLAGS, ContainerView, Mount
from clusterctl.shared.errors import Cause, ClusterctlError, TaskError

RUNNER = [sys.executable, "-I", "-S", str(Path(clusterctl.__file__).parent / "launcher" / "containers")]
SYSTEM_RUNNER = ["/usr/bin/python3", *RUNNER[1:]]
USER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
NO_ADMIN = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")


def let_others_in(path: Path) -> None:
    """pytest's folders are private to their owner."""
    for folder in (path, *path.parents):
        if folder.stat().st_mode & 0o055 != 0o055:
            folder.chmod(0o755)


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Start without unpacked trees of other tests, and leave none behind."""
    store = tmp_path / "store"
    store.mkdir(mode=0o777)
    store.chmod(0o777)
    monkeypatch.setenv("CLUSTERCTL_UNPACK", str(store))
    return store


def inside(
    image: ThinImage,
    command: Sequence[str],
    *flags: str,
    prefix: Sequence[str] = (),
    mounts: Sequence[str] = (),
    **more: str,
) -> subprocess.CompletedProcess[str]:
    runner = SYSTEM_RUNNER if prefix else RUNNER
    given = ",".join([*(("/usr:/usr:ro",) if prefix else image.mounts), *mounts])
    argv = [*prefix, *runner, f"--container-image={image.path}", f"--container-mounts={given}", *flags, "--", *command]
    return subprocess.run(argv, env={**os.environ, **more}, capture_output=True, text=True, timeout=60, check=False)


def shell(image: ThinImage, script: str, *flags: str, **more: str) -> str:
    done = inside(image, ["sh", "-c", script], *flags, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_sees_the_image_and_nothing_else_of_the_host(thin_image: ThinImage, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("")
    assert shell(thin_image, f"ls {tmp_path} 2>/dev/null || echo hidden") == "hidden\n"
    assert shell(thin_image, "pwd; cat own.txt") == "/srv\nthe image's own\n"


def test_the_root_is_read_only_and_tmp_is_fresh(thin_image: ThinImage) -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp") as hosts:
        script = f"touch /x 2>/dev/null || echo refused; test -e {hosts.name} || touch /tmp/x && echo scratch"
        assert shell(thin_image, script) == "refused\nscratch\n"


def test_changes_to_a_writable_image_are_discarded(thin_image: ThinImage) -> None:
    assert shell(thin_image, "echo new >/srv/own.txt; cat own.txt", "--container-writable") == "new\n"
    assert shell(thin_image, "cat own.txt") == "the image's own\n"
    assert shell(thin_image, "cat own.txt", "--container-writable") == "the image's own\n"


def test_tasks_of_one_step_write_into_the_same_image(thin_image: ThinImage) -> None:
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURMD_NODENAME": "n1"}
    shell(thin_image, "echo new >/srv/own.txt", "--container-writable", **step)
    assert shell(thin_image, "cat own.txt", "--container-writable", **step) == "new\n"
    other = {**step, "SLURMD_NODENAME": "n2"}
    assert shell(thin_image, "cat own.txt", "--container-writable", **other) == "the image's own\n"


def test_mounts_appear_at_their_targets_read_only_on_request(thin_image: ThinImage, tmp_path: Path) -> None:
    for name in ("data", "scratch", "data/below"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_text("one file\n")
    mounts = [f"{tmp_path}/data:/in/data:ro", f"{tmp_path}/scratch:/scratch", f"{tmp_path}/file:/etc/one:ro"]
    script = "touch /in/data/x 2>/dev/null || echo refused; echo hi >/scratch/x; ls /in/data; cat /etc/one"
    done = inside(thin_image, ["sh", "-c", script], mounts=mounts)
    assert done.stdout == "refused\nbelow\none file\n", done.stderr
    assert (tmp_path / "scratch" / "x").read_text() == "hi\n"


def test_links_in_the_image_resolve_inside_the_image(tmp_path: Path, thin_image: ThinImage) -> None:
    root = tmp_path / "thin.sqsh.root"
    root.mkdir()
    (root / "data").symlink_to("/srv")
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "x").write_text("")
    image = ThinImage(make_thin(tmp_path), thin_image.mounts)
    assert inside(image, ["ls", "/srv/in"], mounts=[f"{tmp_path}/given:/data/in"]).stdout == "x\n"
    assert not Path("/srv/in").exists()


def test_variables_follow_enroots_rules(thin_image: ThinImage) -> None:
    script = "echo $COLOUR $SHAPE $MINE $LC_ALL $LANG $LC_TIME; echo $PATH"
    host = {
        "COLOUR": "host",
        "SHAPE": "host",
        "MINE": "host",
        "LC_ALL": "C",
        "LANG": "C",
        "LC_TIME": "C",
        "PATH": f"/host:{os.environ['PATH']}",
    }
    shown = shell(thin_image, script, "--container-env=SHAPE", **host)
    assert shown == "image host host C.UTF-8 C\n/opt/venv/bin:/usr/local/bin:/usr/bin:/bin\n"


def test_the_images_own_variables_are_read_as_enroot_reads_them(tmp_path: Path, thin_image: ThinImage) -> None:
    text = "WHO=me and ${MINE}${NOBODYS}\nLITERAL=$MINE\nQUOTED=\"a b\"\nSINGLE='c d'\nONE='\n"
    image = ThinImage(make_thin(tmp_path, etc__environment=text), thin_image.mounts)
    shown = shell(image, 'printf "%s|" "$WHO" "$LITERAL" "$QUOTED" "$SINGLE" "$ONE"', MINE="you")
    assert shown == "me and you|$MINE|a b|c d|'|"


def test_standard_folders_and_user_names_exist_as_under_enroot(tmp_path: Path, thin_image: ThinImage) -> None:
    (tmp_path / "thin.sqsh.root" / "run").mkdir(parents=True)
    (tmp_path / "thin.sqsh.root" / "var").mkdir()
    (tmp_path / "thin.sqsh.root" / "var" / "lock").symlink_to("/run/lock")
    image = ThinImage(make_thin(tmp_path), thin_image.mounts)
    assert shell(image, "touch /run/x /var/lock/x && ls /run/x /run/lock/x") == "/run/lock/x\n/run/x\n"
    assert shell(image, "test ! -e /run/x && echo fresh") == "fresh\n"
    ids = "import grp, os, pwd; print(grp.getgrgid(os.getgid())[2] == os.getgid(), pwd.getpwuid(os.getuid())[2])"
    assert inside(image, ["/opt/venv/bin/python", "-c", ids]).stdout == f"True {os.getuid()}\n"
    if Path("/etc/machine-id").exists():
        assert shell(image, "cat /etc/machine-id") == Path("/etc/machine-id").read_text()


@pytest.mark.parametrize(("flags", "place"), [([], ""), (["--container-remap-root"], "/root")])
def test_the_home_folder_is_at_home(thin_image: ThinImage, tmp_path: Path, flags: list[str], place: str) -> None:
    (tmp_path / "mine").touch()
    shown = shell(thin_image, "echo $HOME; ls ~", "--container-mount-home", *flags, HOME=str(tmp_path))
    assert shown.startswith(f"{place or tmp_path}\n")
    assert "mine\n" in shown


@pytest.mark.parametrize(
    ("flags", "command", "shown"),
    [
        (["--no-container-entrypoint"], ["echo", "a  b", "$HOME"], "a  b $HOME\n"),
        (["--container-entrypoint"], ["echo", "a  b"], "entry point\na  b\n"),
        ([], [], "started by the image\n"),
        (["--container-workdir=/etc"], ["pwd"], "/etc\n"),
        (["--container-workdir=/etc", "--container-entrypoint"], ["pwd"], "entry point\n/etc\n"),
        (["--container-entrypoint"], ["pwd"], "entry point\n/srv\n"),
    ],
)
def test_the_images_entry_point_runs_on_request(
    thin_image: ThinImage, flags: list[str], command: list[str], shown: str
) -> None:
    assert inside(thin_image, command, *flags).stdout == shown


@pytest.mark.parametrize("code", [0, 3, 255])
def test_exit_codes_are_passed_on(thin_image: ThinImage, code: int) -> None:
    assert inside(thin_image, ["sh", "-c", f"exit {code}"]).returncode == code


def test_the_process_execs_the_command_so_signals_arrive(thin_image: ThinImage) -> None:
    script = """
import os, signal, time
signal.signal(signal.SIGUSR2, lambda *_: os.write(1, b"warned\\n"))  # print is not reentrant
print(os.getpid(), flush=True)
time.sleep(600)
"""
    argv = [*RUNNER, f"--container-image={thin_image.path}", f"--container-mounts={','.join(thin_image.mounts)}"]
    process = subprocess.Popen([*argv, "--", "/opt/venv/bin/python", "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == f"{process.pid}\n"
    process.send_signal(signal.SIGUSR2)
    assert process.stdout.readline() == "warned\n"
    process.terminate()
    assert process.wait(10) == -signal.SIGTERM
    process.stdout.close()


@as_root
@pytest.mark.parametrize(
    ("prefix", "flags", "who"),
    [
        (USER, [], "65534 nobody-in-here /nowhere"),
        (USER, ["--container-remap-root"], "0 root /root"),
        (NO_ADMIN, [], "0 root /nowhere"),
        (["env"], ["--container-remap-root"], "0 root /root"),
    ],
    ids=["a user", "a user mapped to root", "root without CAP_SYS_ADMIN", "root"],
)
def test_the_user_inside_is_the_user_outside(
    tmp_path: Path, own_store: Path, prefix: list[str], flags: list[str], who: str
) -> None:
    let_others_in(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o777)
    image = ThinImage(make_thin(tmp_path), ())
    image.path.chmod(0o644)
    script = "echo $(id -u) $(id -un) $HOME; touch /x 2>/dev/null || echo refused; touch /mine/x && echo written"
    runner = [*prefix, *SYSTEM_RUNNER, *flags]
    argv = [*runner, f"--container-image={image.path}", f"--container-mounts=/usr:/usr:ro,{tmp_path}/mine:/mine"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "USER": "nobody-in-here"}
    environment["CLUSTERCTL_UNPACK"] = str(own_store)
    done = subprocess.run(
        [*argv, "--", "sh", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{who}\nrefused\nwritten\n", done.stderr
    assert (tmp_path / "mine" / "x").stat().st_uid == (65534 if prefix == USER else 0)


@pytest.mark.parametrize(
    ("flags", "cause", "message", "hint"),
    [
        (["--container-image=/nowhere.sqsh"], "image", "cannot read the image: /nowhere.sqsh", "image"),
        (["--container-image=/etc/passwd"], "image", "cannot read the image: /etc/passwd", "verify"),
        (["--container-image={image}", "--container-mounts=/nowhere:/x"], "launch", "cannot mount /nowhere", "mounts"),
        (
            ["--container-image={image}", "--container-workdir=/nowhere"],
            "launch",
            "cannot use the working directory",
            "workdir",
        ),
        (["--container-colour=red"], "user-error", "unknown container flag: --container-colour=red", ""),
        ([], "user-error", "no container image given", "--container-image"),
    ],
)
def test_errors_are_reported_without_a_traceback(
    thin_image: ThinImage, flags: list[str], cause: str, message: str, hint: str
) -> None:
    argv = [*RUNNER, *(flag.format(image=thin_image.path) for flag in flags), "--", "true"]
    for environment, start in (
        (os.environ, "error"),
        ({**os.environ, "CLUSTERCTL_ATTEMPT": "0"}, f"clusterctl[{cause}]"),
    ):
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode in (1, 2)
        assert done.stderr.startswith(f"{start}: {message}")
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


def test_concurrent_tasks_unpack_the_image_once(thin_image: ThinImage, own_store: Path) -> None:
    argv = [*RUNNER, f"--container-image={thin_image.path}", "--container-mounts=/usr:/usr:ro", "--"]
    script = "stat -c %i /etc/profile"
    started = [subprocess.Popen([*argv, "sh", "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(6)]
    assert len({process.communicate()[0] for process in started}) == 1
    assert {process.returncode for process in started} == {0}
    names = sorted(path.suffix for path in (own_store / f"clusterctl-{os.geteuid()}").iterdir())
    assert names == ["", ".lock"]


def test_a_task_does_not_wait_for_tasks_already_running_in_a_new_tree(
    thin_image: ThinImage, own_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = own_store / "tree"
    tree.mkdir()
    noted, faster = unpacked._noted, []

    def see_nothing_at_first(lock: Path) -> Path | None:
        if faster:
            return noted(lock)
        lock.write_text(str(tree))  # between this check and the lock, another task unpacks and runs
        faster.append(os.open(lock, os.O_RDWR))
        fcntl.flock(faster[0], fcntl.LOCK_SH)
        return None

    monkeypatch.setattr(unpacked, "_noted", see_nothing_at_first)
    found: list[Path] = []
    task = threading.Thread(target=lambda: found.append(unpacked.hold(thin_image.path)), daemon=True)
    task.start()
    task.join(20)
    for descriptor in faster:
        os.close(descriptor)
    assert found == [tree]


def test_a_tree_is_removed_only_when_unused(thin_image: ThinImage, own_store: Path) -> None:
    folder = own_store / f"clusterctl-{os.geteuid()}"
    argv = [*RUNNER, f"--container-image={thin_image.path}", "--container-mounts=/usr:/usr:ro", "--"]
    process = subprocess.Popen([*argv, "sh", "-c", "echo up; exec sleep 600"], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "up\n"
    unpacked.release(thin_image.path)
    assert len(list(folder.iterdir())) == 2
    process.kill()
    process.wait()
    process.stdout.close()
    wait_until(lambda: (unpacked.release(thin_image.path), not list(folder.iterdir()))[1])


def test_a_replaced_image_is_unpacked_again_and_the_old_tree_is_removed_later(
    tmp_path: Path, thin_image: ThinImage, own_store: Path
) -> None:
    image = ThinImage(make_thin(tmp_path), thin_image.mounts)
    assert shell(image, "cat own.txt") == "the image's own\n"
    (old,) = own_store.glob("*/*.lock")
    os.utime(old, (0, 0))
    newer = make_thin(tmp_path, "newer.sqsh", srv__own__txt="")
    (tmp_path / "newer.sqsh.root" / "srv" / "own.txt").write_text("newer\n")
    image.path.unlink()
    newer.unlink()
    subprocess.run(
        ["mksquashfs", f"{newer}.root", image.path, "-quiet", "-no-progress"], check=True, capture_output=True
    )
    assert shell(image, "cat own.txt") == "newer\n"
    assert not old.exists()
    assert len(list(own_store.glob("*/*.lock"))) == 1


@as_root
def test_a_user_can_unpack_device_nodes_and_folders_without_permissions(tmp_path: Path, own_store: Path) -> None:
    let_others_in(tmp_path)
    nodes = ["dev d 755 0 0", "dev/zero c 666 0 0 1 5", "locked d 555 0 0", "locked/x f 444 0 0 echo hi"]
    image = make_thin(tmp_path, "nodes.sqsh", pseudo=nodes)
    image.chmod(0o644)
    argv = [*USER, *SYSTEM_RUNNER, f"--container-image={image}", "--container-mounts=/usr:/usr:ro", "--"]
    done = subprocess.run([*argv, "cat", "/locked/x"], capture_output=True, text=True, check=False)
    assert done.stdout == "hi\n", done.stderr
    subprocess.run([*USER, *SYSTEM_RUNNER, "--release", image], check=True)
    assert list((own_store / "clusterctl-65534").iterdir()) == []


@as_root
def test_a_disk_full_while_unpacking_leaves_nothing_behind(
    thin_image: ThinImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    image = make_thin(tmp_path, "large.sqsh", srv__large="x" * 2**20)
    monkeypatch.setattr(unpacked, "room", lambda store: 10**12)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", small], check=True)
    try:
        with pytest.raises(TaskError, match="unsquashfs: ") as raised:
            unpacked.hold(image, environment={"CLUSTERCTL_UNPACK": str(small)})
        left = [path.name for path in (small / f"clusterctl-{os.geteuid()}").iterdir() if path.is_dir()]
    finally:
        subprocess.run(["umount", small], check=True)
    assert "disk space" in raised.value.hint
    assert raised.value.cause is Cause.DISK
    assert left == []


@as_root
def test_a_shared_folder_owned_by_another_user_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, free = tmp_path / "theirs", tmp_path / "free"
    for place in (theirs, free):
        place.mkdir()
    (theirs / f"clusterctl-{os.geteuid()}").mkdir()
    os.chown(theirs / f"clusterctl-{os.geteuid()}", 65534, 65534)
    monkeypatch.setattr(unpacked, "_SHARED", (str(theirs), str(free)))
    assert unpacked.stores({}) == [free]
    with pytest.raises(TaskError, match="owned by another user"):
        unpacked.hold(tmp_path / "image", environment={"CLUSTERCTL_UNPACK": str(theirs)})


def test_without_enough_space_nothing_is_unpacked(thin_image: ThinImage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacked, "room", lambda store: 1000)
    with pytest.raises(TaskError, match="no room to unpack the image"):
        unpacked.hold(thin_image.path)


def test_an_images_working_directory_is_read_from_its_rc() -> None:
    assert own_workdir('mkdir -p "/a b" 2> /dev/null\ncd "/a b" && unset OLDPWD || exit 1\n') == "/a b"
    assert own_workdir("exec true") == own_workdir("") == own_workdir("cd 'unfinished") == "/"


def test_a_command_is_the_shells_only_argument() -> None:
    assert program(["a b", "c"], entrypoint=False, rc=True) == ["-c", 'exec "$@"', "sh", "a b", "c"]
    assert program(["a"], entrypoint=True, rc=False) == ["-c", 'exec "$@"', "sh", "a"]
    assert program([], entrypoint=False, rc=False) == []


PATHS = st.text(st.characters(exclude_characters=",:+%\\\n\0"), min_size=1).map(lambda text: f"/x{text}")
MOUNTS = st.builds(Mount, PATHS, PATHS, st.lists(st.sampled_from(sorted(FLAGS)), unique=True).map(tuple))
VIEWS = st.builds(
    ContainerView,
    image=PATHS,
    mounts=st.lists(MOUNTS, unique_by=str).map(tuple),
    workdir=st.none() | PATHS,
    writable=st.booleans(),
    mount_home=st.booleans(),
    remap_root=st.booleans(),
    entrypoint=st.booleans(),
    environment=st.lists(st.from_regex(r"[A-Z_]+", fullmatch=True), unique=True).map(tuple),
)


@given(view=VIEWS)
def test_flags_can_be_written_and_parsed_again(view: ContainerView) -> None:
    assert ContainerView.parse(view.flags()) == view


@given(text=st.text())
def test_arbitrary_flags_are_parsed_or_refused(text: str) -> None:
    try:
        ContainerView.parse(["--container-image=/i", f"--container-mounts={text}", text])
    except ClusterctlError as error:
        assert error.message


@given(text=st.text())
def test_the_working_directory_of_an_arbitrary_rc_is_a_path(text: str) -> None:
    assert own_workdir(text)
    assert own_workdir(f"cd {text}")
