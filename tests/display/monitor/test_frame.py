"""A single frame as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len
from support.made_runs import NODES
from support.mistake import check_plain
from support.screens import contrast

from clusterctl.launcher.display.monitor.panes import PAGES, MonitorView, Pane, draw, frame
from clusterctl.launcher.observe.lines import GrowingRecords
from clusterctl.launcher.observe.overview import Overview

GOLDEN = Path(__file__).parent / "golden"
HOSTILE = "\x1b[2J\x1b]0;title\x07[red]x[/red]<script>alert(1)</script>\u202e日本\r\n"


@pytest.mark.parametrize("size", [(80, 24), (200, 60)], ids=lambda size: "x".join(map(str, size)))
def test_the_frame_matches_the_golden_file(overview: Overview, size: tuple[int, int], update_golden: bool) -> None:
    text = frame(MonitorView(overview.look()), *size).plain + "\n"
    golden = GOLDEN / f"frame_{size[0]}x{size[1]}.txt"
    if update_golden:
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("size", [(80, 24), (60, 16), (133, 41), (200, 60)], ids=lambda size: "x".join(map(str, size)))
def test_no_line_is_wider_than_the_terminal_whatever_is_shown(overview: Overview, size, page) -> None:
    lines = frame(MonitorView(overview.look()), *size, page).plain.split("\n")
    assert len(lines) <= size[1]
    assert max(map(cell_len, lines)) <= size[0]


def test_a_run_with_idle_ranks_shows_since_when(fabricate, overview: Overview) -> None:
    ranks = {str(rank): {"phase": "training", "idle": 480.0} for rank in range(4)}
    fabricate(
        "x-20990102-030405-00a1",
        {
            "submission.json": {"job_id": "4242"},
            "attempts/0/host.json": {"attempt": 0, "job_id": "4242", "nodes": "node0", "start": 1.0},
            "attempts/0/events/rank_00000.jsonl": [{"time": 3.0, "event": "stage", "stage": "training"}],
            "attempts/0/telemetry/node0.jsonl": [{"time": 4000.0, "ranks": ranks}],
        },
    )
    assert "idle since 00:58:40 UTC, logs no steps" in frame(MonitorView(overview.look()), 160, 40).plain


@pytest.mark.parametrize("page", PAGES)
def test_output_of_a_program_is_shown_as_plain_text(fabricate, overview: Overview, page) -> None:
    fabricate(
        "x-20990102-030405-00a1",
        {
            "attempts/0/host.json": {"attempt": 0, "job_id": "1", "nodes": HOSTILE, "start": 1.0},
            "attempts/0/events/rank_00000.jsonl": [
                {"time": 2.0, "event": "began", "host": HOSTILE},
                {"time": 3.0, "event": "exception", "type": HOSTILE, "message": HOSTILE},
            ],
            "attempts/0/metrics.jsonl": [{"time": 3.0, "step": 1, HOSTILE: 1.0}],
            "attempts/0/telemetry/node0.jsonl": [{"time": 4.0, "ranks": {"0": {"phase": HOSTILE}}}],
            "attempts/0/logs/rank_00000.out": HOSTILE,
        },
    )
    scene = overview.look("x-20990102-030405-00a1")
    text = frame(MonitorView(scene), 100, 30, page).plain
    check_plain(text)
    assert max(map(cell_len, text.split("\n"))) <= 100
    if page == "log":
        assert "[red]x[/red]<script>alert(1)</script>日本" in text


def test_the_slow_rank_the_idle_gpu_and_the_split_of_a_step_are_shown(overview: Overview) -> None:
    text = frame(MonitorView(overview.look()), 200, 60).plain
    assert "rank 13 (node1): 1.8x the others" in text
    assert "sampling         300.0 ms  30%" in text
    assert "node3" in text
    assert "gin-20260101-030405-00a1  Resources" in text


class CountingLock:
    """A lock that counts how often it is taken."""

    def __init__(self) -> None:
        self.taken, self.held = 0, False

    def __enter__(self) -> None:
        assert not self.held
        self.taken, self.held = self.taken + 1, True

    def __exit__(self, *_: object) -> None:
        self.held = False


# Black, red, green and yellow of terminals whose "white" is grey, light or dark.
_THEMES = (
    ("#000000", "#cd3131", "#00bc00", "#949800"),
    ("#000000", "#cd0000", "#00cd00", "#cdcd00"),
    ("#073642", "#dc322f", "#859900", "#b58900"),
    ("#0c0c0c", "#c50f1f", "#13a10e", "#c19c00"),
)


@pytest.mark.parametrize("theme", _THEMES)
def test_the_use_of_a_gpu_is_legible_in_light_and_dark_terminals(overview: Overview, theme: tuple[str, ...]) -> None:
    names = dict(zip(("black", "red", "green", "yellow"), theme, strict=True))
    styles = {str(span.style) for span in draw(Pane.DEVICES, MonitorView(overview.look()), 120, 20).spans}
    cells = [style.removeprefix("bold ").split(" on ") for style in styles if " on " in style]
    assert len(cells) >= 4
    assert min(contrast(names[text], names[ground]) for text, ground in cells) >= 2.5


@pytest.mark.parametrize("width", [78, 118])
def test_memory_is_shown_beside_eight_gpus_in_any_terminal(overview: Overview, width: int) -> None:
    head, *nodes = draw(Pane.DEVICES, MonitorView(overview.look()), width, 20).plain.splitlines()
    assert head.split()[-3:] == ["gpu7", "cpu", "memory"]
    assert len(nodes) == NODES
    assert all(re.search(r" 1[234]\.5/64 +9[0-3]G", line) for line in nodes)
    assert not any("…" in line for line in (head, *nodes))


def test_drawing_a_history_holds_its_lock_but_reading_a_file_does_not(
    overview: Overview, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = MonitorView(overview.look())
    history = view.scene.selected.history
    history.lock = lock = CountingLock()
    for pane in (Pane.TRAINING, Pane.DEVICES, Pane.STEPS):
        draw(pane, view, 80, 20)
    assert lock.taken == 3

    def reading(self: GrowingRecords) -> Iterator[dict[str, float]]:
        for step in range(3):
            assert not lock.held
            yield {"time": 1e6 + step, "step": 301 + step, "loss": 1.0}

    monkeypatch.setattr(GrowingRecords, "read", reading)
    history.update()
    assert lock.taken > 6
    assert history.curves["loss"].points()[-1].x == 303


def test_without_runs_it_shows_what_to_type(tmp_path: Path) -> None:
    assert "clusterctl submit cora" in frame(MonitorView(Overview(tmp_path).look()), 80, 24).plain
