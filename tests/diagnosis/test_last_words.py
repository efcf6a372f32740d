"""What a rank's stderr ends with: exceptions read whole, told apart by process, and what follows them."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.diagnosis.last_words import LastWords, PythonError, last_words

SLURMS = "slurmstepd-node1: error: *** STEP 12.0 ON node1 CANCELLED AT 2026-11-20T15:02:37 ***"


def read(text: str) -> LastWords:
    return last_words(tuple(line for line in text.splitlines() if line.strip()))


def only(text: str) -> PythonError:
    (error,) = read(text).errors
    return error


def printed(action: Callable[[], object]) -> str:
    """What Python prints about the exception of `action`."""
    try:
        action()
    except Exception as error:
        return "".join(traceback.format_exception(error))
    raise AssertionError


def fails(error: BaseException, cause: BaseException | None = None, note: str = "") -> Callable[[], object]:
    def action() -> None:
        if note:
            error.add_note(note)
        raise error from cause

    return action


def traceback_of(last: str, file: str = "train.py") -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 7, in <module>\n    main()\n{last}\n'


def test_an_exception_is_read_with_all_lines_of_its_message() -> None:
    mismatch = "RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for fc.weight: torch.Size([3])"
    error = only(traceback_of(mismatch))
    assert error.message == (mismatch.splitlines()[0], "size mismatch for fc.weight: torch.Size([3])")
    assert error.ends
    assert error.text.endswith("torch.Size([3])")


def test_the_traceback_of_a_data_loaders_worker_belongs_to_the_message() -> None:
    text = (
        traceback_of("KeyError: Caught KeyError in DataLoader worker process 0.").rstrip()
        + "\nOriginal "
        + traceback_of("KeyError: 'age'", "data.py")
    )
    error = only(text)
    assert error.message == ("KeyError: Caught KeyError in DataLoader worker process 0.", "KeyError: 'age'")
    assert '"data.py", line 7' in error.text
    assert error.ends


def test_the_traceback_of_a_spawned_process_belongs_to_the_message() -> None:
    spawned = (
        "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 1 terminated with the following error:\n"
    )
    error = only(traceback_of(spawned + traceback_of("KeyError: 'age'", "data.py")))
    assert (error.message[-1], error.ends) == ("KeyError: 'age'", True)


def test_the_last_error_of_nccl_belongs_to_the_message() -> None:
    text = traceback_of(
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled system error\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
        "Last error:\n"
        "Error while creating shared memory segment /dev/shm/nccl-x7 (size 9637888)"
    )
    assert only(text).message[-1].startswith("Error while creating shared memory segment")


def test_groups_notes_and_syntax_errors_are_exceptions() -> None:
    group = only(printed(fails(ExceptionGroup("two", [ValueError("one"), OSError(28, "No space left on device")]))))
    assert group.message == (
        "ExceptionGroup: two (2 sub-exceptions)",
        "ValueError: one",
        "OSError: [Errno 28] No space left on device",
    )
    noted = only(printed(fails(ValueError("bad"), note="in epoch 3")))
    assert (noted.message[0], noted.after) == ("ValueError: bad", ("in epoch 3",))
    syntax = only('  File "/code/train.py", line 3\n    def f(:\n          ^\nSyntaxError: invalid syntax\n')
    assert syntax.message == ("SyntaxError: invalid syntax",)
    remote = (
        'concurrent.futures.process._RemoteTraceback: \n"""\n' + traceback_of("KeyError: 'age'", "data.py") + '"""\n\n'
    )
    chained = remote + "The above exception was the direct cause of the following exception:\n\n"
    assert only(chained + traceback_of("KeyError: 'age'")).message == ("KeyError: 'age'",)


def test_exceptions_are_chained_only_by_the_two_sentences_of_python() -> None:
    direct = only(printed(fails(ValueError("outer"), OSError("inner"))))
    assert (direct.message, direct.causes) == (("ValueError: outer",), ("OSError: inner",))
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    handling = only(traceback_of("KeyError: 'a'") + during + traceback_of("NameError: b"))
    assert (handling.message, handling.causes, handling.handling) == (("NameError: b",), (), ("KeyError: 'a'",))
    unrelated = read(traceback_of("KeyError: 'a'") + traceback_of("NameError: b")).errors
    assert [error.message[0] for error in unrelated] == ["KeyError: 'a'", "NameError: b"]
    assert [error.ends for error in unrelated] == [False, True]


@pytest.mark.parametrize(
    "noise",
    [
        SLURMS,
        "srun: error: node1: task 1: Exited with exit code 1",
        "/usr/lib/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: leaked\n  warnings.warn(",
        f"Exception ignored in: <function Pool.__del__ at 0x7f>\n{traceback_of('OSError: [Errno 9] Bad file')}",
        "[rank0]:[W1126 12:00:00.123 ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not called",
        "wandb: Find logs at: ./wandb/run-1/logs",
        "W1126 12:00:00.1 17 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 20 closing signal",
    ],
)
def test_the_noise_of_a_process_that_shuts_down_does_not_count_as_going_on(noise: str) -> None:
    assert only(traceback_of("ValueError: bad") + noise).ends


@pytest.mark.parametrize(
    "more", ["epoch 3 loss 0.2", "error: validation set is empty", "2026-11-26 01:02:03,4 INFO saved", "giving up"]
)
def test_an_exception_that_the_program_survived_is_not_the_end(more: str) -> None:
    error = only(traceback_of("OSError: [Errno 28] No space left on device") + more)
    assert (error.ends, error.after) == (False, (more,))


@pytest.mark.parametrize(
    "before", ["ERROR:root:cannot save", "2026-11-26 01:02:03,456 ERROR cannot save", "[12:01:02][ERROR] x"]
)
def test_a_logged_exception_is_not_the_end(before: str) -> None:
    assert not only(f"{before}\n{traceback_of('ValueError: bad')}").ends


def test_the_processes_in_one_stderr_are_told_apart_by_their_prefixes() -> None:
    own, other = traceback_of("KeyError: 'age'"), traceback_of("RuntimeError: Connection closed by peer")
    for prefix in ("[rank{}]: ", "[default{}]:", "[node1:{}]: ", "[1,{}]<stderr>:", "{}: ", "[default{0}]:[rank{0}]: "):
        pairs = zip(own.splitlines(), other.splitlines(), strict=True)
        lines = [prefix.format(rank) + line for pair in pairs for rank, line in enumerate(pair)]
        found = read("\n".join(lines)).errors
        assert [error.message[0] for error in found] == ["KeyError: 'age'", "RuntimeError: Connection closed by peer"]
        assert [error.text for error in found] == [own.rstrip(), other.rstrip()]


def test_two_processes_without_prefixes_that_write_at_once_are_both_read() -> None:
    own, other = traceback_of("KeyError: 'age'").splitlines(), traceback_of("ValueError: bad").splitlines()
    lines = [line for pair in zip(own, other, strict=True) for line in pair]
    assert {error.message[0] for error in read("\n".join(lines)).errors} == {"KeyError: 'age'", "ValueError: bad"}


def root_cause(exit_code: str, message: str, others: str = "  <NO_OTHER_FAILURES>") -> str:
    return (
        traceback_of(
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "/venv/torch/distributed/run.py"
        )
        + f"{'=' * 60}\ntrain.py FAILED\n{'-' * 60}\nFailures:\n{others}\n{'-' * 60}\n"
        + "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-26_01:02:03\n  host      : node1\n"
        + f"  rank      : 5 (local_rank: 1)\n  exitcode  : {exit_code} (pid: 124)\n  error_file: <N/A>\n"
        + f"  traceback : {message}\n{'=' * 60}\n"
    )


def test_the_summary_of_torchrun_names_the_worker_that_failed_first() -> None:
    killed = read(root_cause("-9", "Signal 9 (SIGKILL) received by PID 124"))
    assert killed.errors == ()
    assert killed.worker is not None
    assert (killed.worker.rank, killed.worker.local_rank, killed.worker.exit_code) == (5, 1, -9)
    recorded = read(root_cause("1", traceback_of("KeyError: 'age'").rstrip().replace("\n", "\n  ")))
    assert recorded.of_worker is not None
    assert (recorded.of_worker.message, recorded.of_worker.ends) == (("KeyError: 'age'",), True)
    lines = [
        *(f"[rank5]: {line}" for line in traceback_of("KeyError: 'age'").splitlines()),
        *(f"[rank4]: {line}" for line in traceback_of("RuntimeError: Connection closed by peer").splitlines()),
    ]
    hint = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    printed_by_it = read("\n".join(lines) + "\n" + root_cause("1", hint))
    assert printed_by_it.of_worker is not None
    assert printed_by_it.of_worker.message == ("KeyError: 'age'",)


def test_other_launchers_report_the_end_of_their_worker_too() -> None:
    command = "subprocess.CalledProcessError: Command '['python', 'train.py']'"
    file = "/venv/lib/python3.11/site-packages/accelerate/commands/launch.py"
    for end, code in (("returned non-zero exit status 3.", 3), ("died with <Signals.SIGKILL: 9>.", -9)):
        launcher = traceback_of(f"{command} {end}", file).replace("<module>", "simple_launcher")
        found = read(traceback_of("KeyError: 'age'") + launcher)
        assert found.worker is not None
        assert found.worker.exit_code == code
        assert [error.message[0] for error in found.errors] == ["KeyError: 'age'"]
        own = read(traceback_of(f"{command} {end}", "train.py"))  # a program that runs another one
        assert own.worker is None
    mpi = read("mpirun noticed that process rank 2 with PID 0 on node node1 exited on signal 9 (Killed).")
    assert mpi.worker is not None
    assert (mpi.worker.rank, mpi.worker.exit_code) == (2, -9)


def test_the_last_line_that_may_be_a_reason_is_neither_a_warning_nor_a_farewell() -> None:
    lines = ["loading", "train.py: no such layer: 7", "WARNING: cache is full", "I/O error on x, retrying", "Exiting."]
    assert read("\n".join(lines)).last == "train.py: no such layer: 7"
    assert read("INFO:    Cleaning up image...\n\x1b[31mFATAL:   \x1b[0mno space").last == "FATAL:   no space"
    assert read("connection refused, retrying").last == ""


def test_what_follows_the_end_of_the_step_is_ignored() -> None:
    found = read(f"started\n{SLURMS}\nslurmstepd: error: pyxis: couldn't start container")
    assert found.lines == ("started",)


def test_an_incomplete_traceback_is_ignored() -> None:
    assert read('Traceback (most recent call last):\n  File "a.py", line 1').errors == ()
    assert read("fine").errors == ()


PIECES = st.sampled_from(
    [
        *traceback_of("KeyError: 'a'").splitlines(),
        "[rank1]: Traceback (most recent call last):",
        "Original Traceback (most recent call last):",
        "  + Exception Group Traceback (most recent call last):",
        "    | ValueError: one",
        "Root Cause (first observed failure):",
        "  exitcode  : -9 (pid: 1)",
        "  traceback : Traceback (most recent call last):",
        "The above exception was the direct cause of the following exception:",
        "x._RemoteTraceback: ",
        '"""',
        '  File "a.py", line 3',
        "Last error:",
        "=" * 60,
    ]
)


@given(st.lists(PIECES | st.text(max_size=200), max_size=30))
def test_arbitrary_output_never_raises_and_quotes_only_what_was_written(lines: list[str]) -> None:
    found = last_words(tuple(lines))
    assert found.last.strip() == found.last
    for error in found.errors:
        assert error.message
        assert all(any(part in line for line in lines) for part in error.message[0].split("\n"))


@pytest.mark.parametrize(
    "line",
    [
        "all.sh: line 3:   812 Killed                  ./solve",
        "/bin/bash: line 1:  77 Segmentation fault      (core dumped) ./mesh",
        "make[2]: *** [Makefile:3: fit] Killed",
        "make: *** [fit] Error 137",
        "xargs: ./convert: terminated by signal 9",
        "=   KILLED BY SIGNAL: 9 (Killed)",
        "Killed",
    ],
)
@pytest.mark.parametrize(
    "after", ["", "all.sh: step 2 of 4 failed", "solving failed (exit code 3)", "exiting with status 1"]
)
def test_a_child_that_a_signal_ended_is_read_from_what_its_parent_says(line: str, after: str) -> None:
    assert read(f"starting\n{line}\n{after}").ended_child == line
    assert read(f"{line}\nplans.ini: key 'depth' appears twice").ended_child == ""
    assert read(f"{line}, retrying\n{after}").ended_child == ""


@pytest.mark.parametrize(
    "line",
    [
        "the signal of 9 sensors is lost",
        "line 3: 12 Killed processes are listed",
        "make: *** [fit] Error 13",
        "error 1370",
    ],
)
def test_other_lines_are_about_no_child(line: str) -> None:
    assert read(line).ended_child == ""


def test_the_parts_of_a_group_are_those_of_its_inner_groups_too() -> None:
    inner = ExceptionGroup("inner", [KeyError("a"), OSError(28, "No space left on device")])
    error = only(printed(fails(ExceptionGroup("outer", [inner, ValueError("b")]))))
    assert error.parts == ["KeyError: 'a'", "OSError: [Errno 28] No space left on device", "ValueError: b"]
    assert not only(traceback_of("ValueError: 2 of (3 sub-exceptions) remain")).parts


def test_a_group_after_a_handled_traceback_is_an_exception_of_its_own() -> None:
    handled, group = read(traceback_of("OSError: full") + printed(fails(ExceptionGroup("g", [KeyError("a")])))).errors
    assert handled.message == ("OSError: full",)
    assert handled.after
    assert group.ends


@pytest.mark.parametrize(
    ("before", "survived"),
    [
        ("WARNING:cache:no copy", True),
        ("2026-01-02 03:04:05 ERROR save: skipped", True),
        ("ERROR:train:the run cannot be saved", False),
        ("INFO:train:going on with step 3", False),
    ],
)
def test_a_log_tells_whether_its_program_survived_an_exception(before: str, survived: bool) -> None:
    error = only(f"{before}\n{traceback_of('OSError: full')}")
    assert (error.logged, error.survived) == (True, survived)
