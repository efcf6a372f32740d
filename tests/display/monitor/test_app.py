"""The live monitor, driven by keys."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Static

from clusterctl.launcher.api.run import Run
from clusterctl.launcher.display.monitor.app import Actions, Confirm, Help, Monitor, PaneBox
from clusterctl.launcher.display.monitor.panes import Pane, arrange, headline
from clusterctl.launcher.observe.overview import Overview
from clusterctl.launcher.observe.state import Status
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.spec import Cluster

GOLDEN = Path(__file__).parent / "golden"
NEVER = 3600.0  # seconds between refreshes: each test triggers its own
BUSY, WAITING = "cora-20260102-030405-00a1", "gin-20260101-030405-00a1"


class Session:
    """A monitor and the actions requested in it."""

    def __init__(self, overview: Overview, **actions: Callable[..., Any]) -> None:
        self.asked: list[str] = []
        self.now = 0.0
        silent = {"explain": lambda status: [], "nodes": lambda cluster: []}
        given = {"cancel": self._recorder("cancel"), "resume": self._recorder("resume"), **silent, **actions}
        self.app = Monitor(overview, Actions(**given), NEVER, clock=lambda: self.now)

    def _recorder(self, verb: str) -> Callable[[Run], None]:
        return lambda run: self.asked.append(f"{verb} {run.id}")

    def play(self, scene: Callable[[Any], Coroutine[Any, Any, None]], size: tuple[int, int] = (80, 24)) -> None:
        async def run() -> None:
            async with self.app.run_test(size=size) as pilot:
                await self.settled(pilot)
                await scene(pilot)

        asyncio.run(run())

    async def settled(self, pilot: Any) -> None:
        await self.app.workers.wait_for_complete()
        await pilot.pause()

    async def press(self, pilot: Any, *keys: str) -> None:
        for key in keys:
            await pilot.press(key)
            await self.settled(pilot)

    @property
    def selected(self) -> str | None:
        return self.app.view.selected_id

    @property
    def shown(self) -> list[Pane]:
        return [box.pane for box in self.app.query(PaneBox) if box.display]


@pytest.fixture
def session(overview: Overview) -> Session:
    return Session(overview)


def normalised(svg: str) -> str:
    """Without the number that is unique to the element IDs of each picture."""
    return re.sub(r"terminal-\d+", "terminal-0", svg)


@pytest.mark.parametrize("size", [(80, 24), (200, 60)], ids=lambda size: "x".join(map(str, size)))
def test_the_screen_matches_the_golden_picture(session: Session, size: tuple[int, int], update_golden: bool) -> None:
    async def scene(pilot: Any) -> None:
        picture = normalised(session.app.export_screenshot(title="clusterctl monitor"))
        golden = GOLDEN / f"screen_{size[0]}x{size[1]}.svg"
        if update_golden:
            golden.write_text(picture)
        assert picture == golden.read_text()

    session.play(scene, size)


def test_the_selection_survives_a_refresh_and_a_newer_run(session: Session, fabricate) -> None:
    async def scene(pilot: Any) -> None:
        assert session.selected == BUSY
        await session.press(pilot, "down")
        assert session.selected == WAITING
        fabricate("new-20260103-030405-00a1")
        session.app.look()
        await session.settled(pilot)
        assert len(session.app.view.scene.statuses) == 3
        assert session.selected == WAITING
        await session.press(pilot, "home")
        assert session.selected == BUSY  # the new one was lost: it comes after the living ones
        await session.press(pilot, "end")
        assert session.selected == "new-20260103-030405-00a1"

    session.play(scene)


def test_a_key_shows_one_pane_and_escape_shows_all(session: Session) -> None:
    async def scene(pilot: Any) -> None:
        assert set(session.shown) == set(Pane)
        await session.press(pilot, "2")
        assert session.shown == [Pane.RUNS, Pane.DEVICES]
        await session.press(pilot, "l")
        assert session.shown == [Pane.RUNS, Pane.LOG]
        await session.press(pilot, "escape")
        assert set(session.shown) == set(Pane)

    session.play(scene, (200, 60))


def test_cancel_asks_first_and_no_does_nothing(session: Session) -> None:
    async def scene(pilot: Any) -> None:
        await session.press(pilot, "c")
        assert isinstance(session.app.screen, Confirm)
        await session.press(pilot, "n")
        assert session.asked == []
        await session.press(pilot, "c", "y")
        assert session.asked == [f"cancel {BUSY}"]

    session.play(scene)


def test_a_running_run_cannot_be_resumed(session: Session) -> None:
    async def scene(pilot: Any) -> None:
        await session.press(pilot, "r")
        assert not isinstance(session.app.screen, Confirm)
        assert [notice.title for notice in session.app._notifications] == ["cannot resume"]

    session.play(scene)


def test_a_refusal_by_slurm_is_shown_and_the_monitor_keeps_running(overview: Overview) -> None:
    def refuse(status: Status) -> None:
        raise SlurmError("scancel: [red]no[/red]", "try again")

    session = Session(overview, cancel=refuse)

    async def scene(pilot: Any) -> None:
        await session.press(pilot, "c", "y")
        (notice,) = session.app._notifications
        assert (notice.title, notice.severity) == ("cancel failed", "error")
        assert "[red]no[/red]" in notice.message
        assert not notice.markup

    session.play(scene)


def test_why_runs_when_its_pane_is_shown(overview: Overview) -> None:
    session = Session(overview, explain=lambda status: [f"because of {status.record.job.name}\x1b[2J"])

    async def scene(pilot: Any) -> None:
        await session.press(pilot, "w")
        assert "because of cora" in session.app.query_one("#why", PaneBox)._text.plain

    session.play(scene)


@pytest.mark.parametrize("size", [(80, 24), (200, 60)], ids=lambda size: "x".join(map(str, size)))
def test_why_is_repeated_for_a_running_run_but_not_at_every_refresh(overview: Overview, size: tuple[int, int]) -> None:
    asked: list[str] = []

    def explain(status: Status) -> list[str]:
        asked.append(status.record.run.id)
        return [f"answer {len(asked)}"]

    session = Session(overview, explain=explain)

    async def look(pilot: Any, seconds: float) -> str:
        session.now += seconds
        session.app.look()
        await session.settled(pilot)
        return str(session.app.query_one("#why", PaneBox)._text.plain)

    async def scene(pilot: Any) -> None:
        await session.press(pilot, "w")
        assert "answer 1" in await look(pilot, 1)
        assert "answer 2" in await look(pilot, 4)
        assert asked == [BUSY, BUSY]
        await session.press(pilot, "down")  # explaining a queued run takes several Slurm queries
        assert "answer 3" in await look(pilot, 4)
        assert "answer 3" in await look(pilot, 50)
        assert "answer 4" in await look(pilot, 10)
        assert asked == [BUSY, BUSY, WAITING, WAITING]

    session.play(scene, size)


def test_why_runs_once_for_an_ended_run_and_not_while_its_pane_is_hidden(overview: Overview, fabricate) -> None:
    asked: list[str] = []
    session = Session(overview, explain=lambda status: asked.append(status.state.value) or ["answer"])

    async def scene(pilot: Any) -> None:
        assert asked == []
        await session.press(pilot, "w")
        assert len(asked) == 1
        fabricate(BUSY, {"finished.json": {"attempt": 1, "time": 5}})
        for _ in range(3):
            session.now += 1000
            session.app.look()
            await session.settled(pilot)
        assert asked[1:] == ["finished"]

    session.play(scene)


def test_a_slow_diagnosis_takes_at_most_a_fiftieth_of_the_time(overview: Overview) -> None:
    asked: list[float] = []

    def explain(status: Status) -> list[str]:
        asked.append(session.now)
        session.now += 0.4
        return ["answer"]

    session = Session(overview, explain=explain)

    async def scene(pilot: Any) -> None:
        await session.press(pilot, "w")
        for _ in range(25):
            session.now += 1.0
            session.app.look()
            await session.settled(pilot)
        assert len(asked) == 2

    session.play(scene)


def test_a_failed_resume_is_shown_with_its_hint(overview: Overview, fabricate) -> None:
    """With the real actions of the command, run in this process."""
    fabricate(BUSY, {"cancel.json": {}, "attempts/1/host.json": {"end": 5, "exit_code": 1}})
    real = Actions()
    session = Session(overview, resume=real.resume, cancel=real.cancel)

    async def scene(pilot: Any) -> None:
        await session.press(pilot, "end", "r", "y")
        (notice,) = session.app._notifications
        assert notice.title == "resume failed"
        assert notice.message.startswith("error: ")
        assert "\nhint: " in notice.message

    session.play(scene)


def test_nodes_are_queried_once_and_shown_with_the_queue(overview: Overview) -> None:
    asked = []

    def nodes(cluster: Cluster) -> list[str]:
        asked.append(cluster.name)
        return ["PARTITION  NODES", "gpu*       4"]

    session = Session(overview, nodes=nodes)

    async def scene(pilot: Any) -> None:
        await session.press(pilot, "6", "down", "up")
        assert "gpu*       4" in session.app.query_one("#queue", PaneBox)._text.plain
        assert asked == ["site"]

    session.play(scene)


def test_a_pane_with_unchanged_text_is_not_repainted(session: Session) -> None:
    async def scene(pilot: Any) -> None:
        painted: list[str] = []
        for box in session.app.query(PaneBox):
            box.refresh = lambda *_, name=str(box.pane), **__: painted.append(name)  # type: ignore[method-assign]
        session.app.look()
        await session.settled(pilot)
        assert painted == []

    session.play(scene, (200, 60))


def test_a_click_selects_a_run(session: Session) -> None:
    async def scene(pilot: Any) -> None:
        await pilot.click("#runs", offset=(5, 3))  # below the frame and the titles
        await session.settled(pilot)
        assert session.selected == WAITING

    session.play(scene)


@pytest.mark.parametrize(("before", "after"), [((80, 24), (200, 60)), ((200, 60), (80, 24)), ((200, 60), (160, 45))])
def test_a_resize_rearranges_all_panes_immediately(session: Session, before, after) -> None:
    async def scene(pilot: Any) -> None:
        await pilot.resize_terminal(*after)
        await pilot.pause()
        shown = {box.pane: box.region for box in session.app.query(PaneBox) if box.display}
        wanted = {region.pane: region for region in arrange(*after)}
        assert {pane: tuple(region) for pane, region in shown.items()} == {p: tuple(r)[1:] for p, r in wanted.items()}

    session.play(scene, before)


def test_the_screen_is_repainted_rarely_enough_for_a_slow_connection() -> None:
    program = (
        "import clusterctl.launcher.display.monitor.app\n"
        "from textual import constants\n"
        "print(constants.MAX_FPS, constants.TEXTUAL_ANIMATIONS)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TEXTUAL_")}
    shown = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["15", "none"]


def test_a_filter_a_sort_and_the_help_are_keys(session: Session) -> None:
    async def scene(pilot: Any) -> None:
        await session.press(pilot, "slash", *"queued q", "backspace", "backspace", "enter")
        assert session.app.is_running  # q is a letter here
        assert (session.app.view.choice.words, session.selected) == ("queued", WAITING)
        words = headline(session.app.view, 120).plain
        assert "filter: queued (1 match)" in words
        older = replace(session.app.view, scene=replace(session.app.view.scene, older=200))
        read = len(session.app.view.scene.statuses)
        assert f" newest {read} of {read + 200} runs: " in headline(older, 120).plain
        await session.press(pilot, "escape")
        assert session.app.view.choice.words == ""
        await session.press(pilot, "s", "s")
        assert "sorted by progress" in headline(session.app.view, 120).plain
        await session.press(pilot, "question_mark")
        assert isinstance(session.app.screen, Help)
        box, text = session.app.screen.query_one(".box"), str(session.app.screen.query_one(Static).content)
        assert max(map(len, text.splitlines())) <= box.content_size.width <= 80 - 6  # with its border and padding
        await session.press(pilot, "q")
        assert session.app.is_running

    session.play(scene)


def test_a_long_explanation_is_wrapped_and_scrolls_to_its_end(overview: Overview) -> None:
    lines = [*(f"line {number}" for number in range(40)), "word " * 40 + "end"]
    session = Session(overview, explain=lambda status: lines)

    def text() -> str:
        return session.app.query_one("#why", PaneBox).render().plain

    async def scene(pilot: Any) -> None:
        await session.press(pilot, "w")
        assert "line 0" in text()
        assert text().endswith("more")
        await session.press(pilot, *["pagedown"] * 9)
        assert text().rstrip().endswith("end")
        await session.press(pilot, "pageup")
        assert not text().rstrip().endswith("end")

    session.play(scene)
