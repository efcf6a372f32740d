"""The monitor's widgets: a pane in its frame, and a confirmation. Imported only by `app`, after its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

from clusterctl.display.monitor.arrange import PAGES, Pane
from clusterctl.display.monitor.panes import MonitorView, draw

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.events import Resize


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
        with Vertical(id="confirm"):
            yield Static(Text(self._question))
            yield Static(Text("y: yes   n: no", "dim"))

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)
