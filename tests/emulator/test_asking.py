"""A command to a job's supervisor, which may answer and then end at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.launcher.emulator import fifo
from clusterctl.launcher.emulator.jobs import EmulatedJob
from clusterctl.shared.errors import SlurmError


@pytest.mark.parametrize(("answer", "refusal"), [("\n", None), ("busy\n", "busy"), ("", "already completing")])
def test_an_answer_counts_although_the_job_has_ended_since(
    answer: str, refusal: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailboxes: list[Path] = []
    job = EmulatedJob(tmp_path / "1")
    job.folder.mkdir()

    def ends(_: EmulatedJob) -> bool:
        """The supervisor answers and ends while it is being looked for."""
        if answer:
            mailboxes[0].write_text(answer)
        return False

    monkeypatch.setattr(fifo, "send", lambda _, name, *__: mailboxes.append(job.folder / name) or True)
    monkeypatch.setattr(EmulatedJob, "is_supervised", property(ends))
    if refusal is None:
        job.ask("release")
    else:
        with pytest.raises(SlurmError, match=refusal):
            job.ask("release")
