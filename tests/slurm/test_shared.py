"""Slurm's answers, shared by a user's processes: which one asks, how often, and what the others get."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterctl.launcher.slurm.client import LONGEST_PAUSE_SECONDS, SharedAnswers, shared_folder
from clusterctl.shared.errors import SlurmError

QUESTION = ("squeue", "--me")


class Controller:
    """Answers with the number of the query; times out while `down`."""

    def __init__(self) -> None:
        self.asked_at: list[float] = []
        self.now = 1000.0
        self.down = False

    def ask(self) -> str:
        self.asked_at.append(self.now)
        if self.down:
            raise SlurmError("squeue did not answer within 10 s", "scontrol ping")
        return f"answer {len(self.asked_at)}\udcff"

    def shared(self, folder: Path, floor: float = 10.0) -> SharedAnswers:
        return SharedAnswers(folder, floor, clock=lambda: self.now)


@pytest.fixture
def controller() -> Controller:
    return Controller()


def test_within_the_polling_floor_all_processes_share_one_answer(controller: Controller, tmp_path: Path) -> None:
    processes = [controller.shared(tmp_path) for _ in range(3)]
    for controller.now in (1000.0, 1004.0, 1009.9):
        answer = [process.answer(QUESTION, controller.ask) for process in processes]
        assert [(t.text, t.taken_at, t.problem) for t in answer] == [("answer 1\udcff", 1000.0, None)] * 3
    controller.now = 1010.0
    assert processes[2].answer(QUESTION, controller.ask).text == "answer 2\udcff"
    assert controller.asked_at == [1000.0, 1010.0]


def test_max_age_can_extend_but_not_shorten_the_floor(controller: Controller, tmp_path: Path) -> None:
    shared = controller.shared(tmp_path)
    for controller.now in (1000.0, 1005.0, 1059.0, 1060.0):
        shared.answer(("sinfo",), controller.ask, max_age=60)
    for controller.now in (1100.0, 1101.0):
        shared.answer(("other",), controller.ask, max_age=0)
    assert controller.asked_at == [1000.0, 1060.0, 1100.0]


def test_after_an_error_the_last_answer_is_kept_and_polling_backs_off(controller: Controller, tmp_path: Path) -> None:
    shared = controller.shared(tmp_path)
    shared.answer(QUESTION, controller.ask)
    controller.down = True
    for second in range(1010, 1300):
        controller.now = float(second)
        answer = controller.shared(tmp_path).answer(QUESTION, controller.ask)  # another process each time
        assert (answer.text, answer.taken_at) == ("answer 1\udcff", 1000.0)
        assert answer.problem is not None
        assert "did not answer" in answer.problem.message
    assert controller.asked_at == [1000.0, 1010.0, 1020.0, 1040.0, 1080.0, 1140.0, 1200.0, 1260.0]
    controller.down, controller.now = False, 1260.0 + LONGEST_PAUSE_SECONDS
    assert shared.answer(QUESTION, controller.ask).problem is None


def test_without_an_answer_the_error_is_shared(controller: Controller, tmp_path: Path) -> None:
    controller.down = True
    for controller.now in (1000.0, 1003.0, 1009.0):
        with pytest.raises(SlurmError, match="did not answer") as caught:
            controller.shared(tmp_path).answer(QUESTION, controller.ask)
        assert caught.value.hint == "scontrol ping"
    assert controller.asked_at == [1000.0]


def test_after_a_change_the_answer_is_fresh(controller: Controller, tmp_path: Path) -> None:
    shared = controller.shared(tmp_path)
    shared.answer(QUESTION, controller.ask)
    shared.forget()
    assert controller.shared(tmp_path).answer(QUESTION, controller.ask).text == "answer 2\udcff"


def test_setting_the_clock_back_does_not_freeze_an_answer(controller: Controller, tmp_path: Path) -> None:
    shared = controller.shared(tmp_path)
    shared.answer(QUESTION, controller.ask)
    controller.now = 10.0
    assert shared.answer(QUESTION, controller.ask).taken_at == 10.0


def test_concurrent_processes_send_one_query(controller: Controller, tmp_path: Path) -> None:
    others = threading.Event()

    def slowly() -> str:
        assert others.wait(10)  # the others have found no answer, and wait for the lease
        return controller.ask()

    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) >= 20:
            others.set()
        threading.Event().wait(seconds)

    def one(_: int) -> str:
        return SharedAnswers(tmp_path, 10.0, lambda: controller.now, sleep).answer(QUESTION, slowly).text

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(one, range(6))) == {"answer 1\udcff"}
    assert len(controller.asked_at) == 1
    assert not list(tmp_path.glob("*.lease*"))


def test_the_lease_of_a_dead_process_is_taken_over_at_once(controller: Controller, tmp_path: Path) -> None:
    shared = controller.shared(tmp_path)
    shared.answer(QUESTION, controller.ask)
    (path,) = tmp_path.iterdir()
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    path.with_suffix(".lease").write_bytes(gone.stdout.strip())
    controller.now += 60
    assert shared.answer(QUESTION, controller.ask).text == "answer 2\udcff"


def test_a_lease_that_was_held_too_long_is_taken_over(controller: Controller, tmp_path: Path) -> None:
    shared = controller.shared(tmp_path)
    shared.answer(QUESTION, controller.ask)
    (path,) = tmp_path.iterdir()
    lease = path.with_suffix(".lease")
    lease.write_text(str(os.getpid()))
    os.utime(lease, (1, 1))
    controller.now += 60
    assert shared.answer(QUESTION, controller.ask).text == "answer 2\udcff"


@pytest.mark.parametrize("content", [b"", b"nonsense", b"[]\n", b'{"further": 1}\n', b"\xff\n"])
def test_a_damaged_cache_file_is_ignored(controller: Controller, tmp_path: Path, content: bytes) -> None:
    shared = controller.shared(tmp_path)
    shared.answer(QUESTION, controller.ask)
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    assert shared.answer(QUESTION, controller.ask).text == "answer 2\udcff"


def test_the_cache_folder_is_private_and_separate_for_each_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    folders = [
        shared_folder(controller, lambda: tmp_path / "state") for controller in (("/bin/squeue", None), ("", "x"))
    ]
    assert len(set(folders)) == 2
    assert all(folder.is_relative_to(runtime) for folder in folders)
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    runtime.chmod(0o755)
    assert shared_folder(("", None), lambda: tmp_path / "state").is_relative_to(tmp_path / "state")
