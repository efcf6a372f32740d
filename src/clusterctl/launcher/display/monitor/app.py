"""The live monitor in Textual. A thread reads the runs; only panes that changed are repainted."""

from __future__ import annotations

import math
import os
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

# Repaints are noticeable over a slow ssh connection. Textual reads both variables on import: keep this above it.
os.environ.setdefault("TEXTUAL_FPS", "15")
os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")

from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, Static

from clusterctl.launcher.api.nodes import nodes
from clusterctl.launcher.api.run import Run
from clusterctl.launcher.diagnosis.diagnose import diagnose_status
from clusterctl.launcher.display.explanation import Causes, explanation, pause_after, state_of
from clusterctl.launcher.display.monitor.panes import PAGES, MonitorView, Pane, arrange, draw, headline
from clusterctl.launcher.display.monitor.rows import ORDERS, Choice, first_row, position_of, rows_of
from clusterctl.launcher.display.plain import plain, plain_lines
from clusterctl.launcher.display.tables import node_lines
from clusterctl.launcher.observe.run_names import submission
from clusterctl.shared.errors import ClusterctlError

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult
    from textual.events import Click, Resize
    from textual.geometry import Size

    from clusterctl.launcher.observe.overview import Overview
    from clusterctl.launcher.observe.state import Status
    from clusterctl.shared.spec import Cluster


T = TypeVar("T")
_NODES_SECONDS = 60.0
_MOST_LINES = 10_000  # of a pane that is scrolled
_KEYS = "↑↓ run  enter sweep  / filter  s sort  1-7 pane  esc all  w why  ? help  q quit"
_HELP = """\
↑ ↓  k j        select a run            /      filter: id, state, note
home end  g G   the first, the last     s      sort by the next column
enter           open or close a sweep   esc    all panes, no filter
1 - 7           a pane below the runs   l  w   the log, why
page up, down   scroll the pane         c  r   cancel, resume (asks)
click           a run, or a pane        q      quit; runs go on
"""


@dataclass(frozen=True)
class Actions:
    """The monitor's actions, run in threads. Each may raise ClusterctlError; two return lines to show."""

    cancel: Callable[[Run], object] = Run.cancel
    resume: Callable[[Run], object] = Run.resume
    explain: Callable[[Status], list[str]] = lambda status: explanation(diagnose_status(status))
    nodes: Callable[[Cluster], list[str]] = lambda cluster: node_lines(nodes(cluster.name))


class Explained(NamedTuple):
    """The diagnosis of a run in `state`, and when to repeat it, by a monotonic clock."""

    lines: tuple[str, ...]
    state: str
    again: float


class Monitor(App[None]):
    """The monitor of the runs in `overview`, refreshed every `seconds`."""

    CSS_PATH = "monitor.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", priority=True),
        Binding("enter,space", "open", "sweep"),
        Binding("slash", "filter", "filter"),
        Binding("s", "sort", "sort"),
        Binding("question_mark", "help", "help"),
        Binding("up,k", "move(-1)", "up"),
        Binding("down,j", "move(1)", "down"),
        Binding("home,g", "move(-1000000)", "first"),
        Binding("end,G", "move(1000000)", "last"),
        Binding("escape", "page('')", "all"),
        Binding("l", "page('log')", "log"),
        Binding("w", "page('why')", "why"),
        Binding("pageup", "scroll(-10)", "up"),
        Binding("pagedown", "scroll(10)", "down"),
        Binding("c", "cancel", "cancel"),
        Binding("r", "resume", "resume"),
        *(Binding(str(number), f"page('{pane}')", str(pane)) for number, pane in enumerate(PAGES, start=1)),
    ]

    def __init__(
        self,
        overview: Overview,
        actions: Actions,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(ansi_color=True)  # the terminal's own colours and background
        self.animation_level = "none"
        self._overview, self._actions, self._seconds = overview, actions, seconds
        self._causes = Causes(overview.folder)
        self._clock = clock
        self._selected: str | None = None  # the run's id
        self._page: Pane | None = None
        self._looking = threading.Lock()
        self._again = False
        self._explained: dict[str, Explained] = {}  # by the run's id
        self._nodes_of: dict[str, tuple[float, tuple[str, ...]]] = {}  # cluster's name -> when, and its nodes
        self._headline = Text()
        self._choice = Choice()
        self.view: MonitorView | None = None

    def compose(self) -> ComposeResult:
        yield Static(Text.assemble((" clusterctl ", "bold reverse"), " reading the runs ..."), id="headline")
        for pane in Pane:
            yield PaneBox(pane)
        yield Static(Text(_KEYS, "dim"), id="keys")

    def on_mount(self) -> None:
        self._place(self.size)
        self.look()
        self.set_interval(self._seconds, self.look)

    def on_resize(self, event: Resize) -> None:
        self._place(event.size)  # `self.size` is still the old one: textual calls a subclass's handler first

    def on_click(self, event: Click) -> None:
        """A click on a run selects it; a click on another pane maximizes it."""
        if not isinstance(event.widget, PaneBox) or self.view is None:
            return
        pane, offset = event.widget.pane, event.get_content_offset(event.widget)
        if pane is not Pane.RUNS:
            self.action_page("" if pane is self._page else str(pane))
        elif offset is not None:
            rows = rows_of(self.view.scene, self._choice)
            place = first_row(rows, self._selected, event.widget.content_size.height - 1) + offset.y - 1
            if offset.y and place < len(rows):
                self._select(rows[place].status.record.run.id)

    def action_move(self, by: int) -> None:
        """Select another run."""
        rows = [row for row in rows_of(self.view.scene, self._choice) if not row.is_open] if self.view else []
        if rows:
            place = max(0, min(len(rows) - 1, position_of(rows, self._selected) + by))
            self._select(rows[place].status.record.run.id)

    def action_open(self) -> None:
        """List the runs of the selected sweep, or only the sweep."""
        sweep = submission(self._selected or "")
        if sweep != self._selected:
            self._choose(opened=self._choice.opened ^ {sweep}, order="")

    def action_sort(self) -> None:
        self._choose(order=ORDERS[(ORDERS.index(self._choice.order) + 1) % len(ORDERS)])

    def action_filter(self) -> None:
        def answered(words: str | None) -> None:
            if words is not None:
                self._choose(words=words)

        self.push_screen(Filter(self._choice.words), answered)

    def action_help(self) -> None:
        self.push_screen(Help())

    def _choose(self, **changes: Any) -> None:
        """List other runs, or in another order; the selection moves to one that is listed."""
        self._choice = replace(self._choice, **changes)
        if self.view is None:
            return
        rows = rows_of(self.view.scene, self._choice)
        if rows and not any(row.stands_for(self._selected or "") for row in rows):
            self._select(rows[0].status.record.run.id)
        self._show(replace(self.view, choice=self._choice))

    def action_page(self, name: str) -> None:
        if not name and self._page is None and self._choice.words:
            self._choose(words="")
        self._page = Pane(name) if name else None
        self._place(self.size)
        if self.view:
            self._show(replace(self.view, back=0, down=0))

    def action_scroll(self, lines: int) -> None:
        """Scroll the pane below the runs; where all are shown, the log."""
        view, page = self.view, self._page or Pane.LOG
        if view is None or view.scene.selected is None:
            return
        if page in (Pane.LOG, Pane.EVENTS):
            selected = view.scene.selected
            most = max(0, len(selected.log if page is Pane.LOG else selected.timeline_events) - 1)
            self._show(replace(view, back=max(0, min(most, view.back - lines))))
        else:
            size = self.query_one(f"#{page}", PaneBox).content_size
            whole = draw(page, replace(view, down=0), size.width, _MOST_LINES).plain.count("\n") + 1
            self._show(replace(view, down=max(0, min(whole - size.height, view.down + lines))))

    def action_cancel(self) -> None:
        self._act("cancel", self._actions.cancel, ended=False)

    def action_resume(self) -> None:
        self._act("resume", self._actions.resume, ended=True)

    def _select(self, run_id: str) -> None:
        self._selected = run_id
        self._again = True
        self.look()

    def _place(self, size: Size) -> None:
        """Place every pane for a terminal of `size`."""
        regions = {region.pane: region for region in arrange(*size, self._page)}
        for box in self.query(PaneBox):
            region = regions.get(box.pane)
            box.display = region is not None
            if region:
                box.styles.offset = (region.x, region.y)
                box.styles.width, box.styles.height = region.width, region.height

    def look(self) -> None:
        """Refresh in a thread, one at a time: a slow file system must not block the keys."""
        if not self._looking.acquire(blocking=False):
            return
        self._again = False

        def ask() -> None:
            try:
                scene = self._overview.look(self._selected)
                scene = replace(scene, causes=self._causes.of(scene.statuses))
            except OSError as error:  # a file server may come back
                trouble = plain(f"{error.filename}: {error.strerror}")
                self.call_from_thread(self._show_headline, Text(trouble, "red"))
                return
            finally:
                self._looking.release()
            self.call_from_thread(self._looked, MonitorView(scene))

        self.run_worker(ask, thread=True, group="look", exit_on_error=True)

    def _show_headline(self, line: Text) -> None:
        if line != self._headline:
            self._headline = line
            self.query_one("#headline", Static).update(line)

    def _looked(self, view: MonitorView) -> None:
        if self._selected is None and view.selected_id is not None:
            self._selected = view.selected_id
        elif view.scene.selected is None and view.scene.statuses:  # its directory was removed
            self._selected = view.scene.statuses[0].record.run.id
            self._again = True
        before = self.view if self.view and self.view.selected_id == view.selected_id else view
        nodes = self._known_nodes(view.scene.selected.status.record.cluster) if view.scene.selected else ()
        known = self._explained.get(view.selected_id or "")
        findings = known.lines if known else ()
        view = replace(view, back=before.back, down=before.down, choice=self._choice)
        self._show(replace(view, nodes=nodes, findings=findings))
        if self._again:
            self.look()

    def _show(self, view: MonitorView) -> None:
        self.view = view
        self._show_headline(headline(view, self.size.width))
        for box in self.query(PaneBox):
            box.show(view)
        if view.scene.selected and self.query_one(f"#{Pane.WHY}", PaneBox).display:
            self._explain(view.scene.selected.status)

    def _known_nodes(self, cluster: Cluster) -> tuple[str, ...]:
        """The nodes of a cluster as last reported, queried at most once a minute."""
        asked_at, lines = self._nodes_of.get(cluster.name, (float("-inf"), ()))
        if self._clock() - asked_at > _NODES_SECONDS:
            self._nodes_of[cluster.name] = (self._clock(), lines)

            def ask() -> None:
                self._nodes_of[cluster.name] = (self._clock(), _lines_of(self._actions.nodes, cluster))
                self.call_from_thread(self.look)

            self.run_worker(ask, thread=True, group="nodes")
        return lines

    def _explain(self, status: Status) -> None:
        """Diagnose the run in a thread, unless that was done recently or nothing can have changed since."""
        run_id, state = status.record.run.id, state_of(status)
        known = self._explained.get(run_id)
        if known and known.state == state and self._clock() < known.again:
            return
        self._explained[run_id] = Explained(known.lines if known else (), state, math.inf)

        def ask() -> None:
            began = self._clock()
            lines = _lines_of(self._actions.explain, status)
            pause = pause_after(status, self._clock() - began)
            explained = Explained(lines, state, self._clock() + pause)

            def take() -> None:
                self._explained[run_id] = explained
                if self.view and self.view.selected_id == run_id:
                    self._show(replace(self.view, findings=lines))

            self.call_from_thread(take)

        self.run_worker(ask, thread=True, group="why")

    def _act(self, verb: str, action: Callable[[Run], object], *, ended: bool) -> None:
        selected = self.view.scene.selected if self.view else None
        if selected is None:
            return
        status, run = selected.status, Run(selected.status.record.run.path)
        run_id = plain(run.id)
        if status.state.ended != ended:
            self.notify(f"{run_id} is {status.state}", title=f"cannot {verb}", markup=False)
            return

        def do() -> None:
            try:
                action(run)
            except (ClusterctlError, OSError) as error:
                text = plain_lines(error.text if isinstance(error, ClusterctlError) else str(error))
                self.call_from_thread(self.notify, text, title=f"{verb} failed", severity="error", markup=False)
            else:
                self.call_from_thread(self.notify, run_id, title=f"{verb} requested", markup=False)
                self.call_from_thread(self.look)

        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(do, thread=True, group="act")

        self.push_screen(Confirm(f"{verb} {run_id}?"), answered)


def _lines_of(ask: Callable[[T], list[str]], about: T) -> tuple[str, ...]:
    """The lines, or the error message instead."""
    try:
        return tuple(ask(about))
    except ClusterctlError as error:
        return tuple(error.text.splitlines())
    except OSError as error:  # a file server may come back
        return (str(error),)


class PaneBox(Widget):
    """One pane in its frame, repainted only when its text changes."""

    can_focus = False

    def __init__(self, pane: Pane) -> None:
        super().__init__(id=str(pane))
        self.pane = pane
        self.border_title = f"{PAGES.index(pane) + 1} {pane}" if pane in PAGES else str(pane)  # the key, the name
        self._view: MonitorView | None = None
        self._text = Text()

    def show(self, view: MonitorView) -> None:
        self._view = view
        self._redraw()

    def render(self) -> Text:
        return self._text

    def on_resize(self, event: Resize) -> None:  # noqa: ARG002 - textual's signature
        self._redraw()

    def _redraw(self) -> None:
        if self._view is None or not self.display:
            return
        text = draw(self.pane, self._view, self.content_size.width, self.content_size.height)
        if text != self._text or text.spans != self._text.spans:
            self._text = text
            self.refresh()


class Help(ModalScreen[None]):
    """What the keys do."""

    BINDINGS: ClassVar = [Binding("escape,q,enter,question_mark", "dismiss", "close")]

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(Text(_HELP.rstrip()))


class Filter(ModalScreen[str | None]):
    """Asks for the words that listed runs have; none lists all."""

    BINDINGS: ClassVar = [Binding("escape", "dismiss", "close")]

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(Text("show only runs with these words in their id, state or note", "dim"))
            yield Input(self._words)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())


class Confirm(ModalScreen[bool]):
    """A confirmation that only `y` accepts."""

    BINDINGS: ClassVar = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q,enter", "answer(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(Text(self._question))
            yield Static(Text("y: yes   n: no", "dim"))

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)
