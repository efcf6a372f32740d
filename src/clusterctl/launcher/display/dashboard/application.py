"""A read-only WSGI application that answers only requests with the token, and `serve`, which runs it.

All users of a machine share its loopback interface, and a browser sends requests on behalf of any open page. So a
request needs the token, first in its address and then in a cookie; its Host must be this machine (against DNS
rebinding); and only GET and HEAD are answered. Open pages share the data that they show.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
import socket
import time
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from threading import Lock
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar
from urllib.parse import parse_qs, quote

from clusterctl.launcher.diagnosis.diagnose import diagnose_status
from clusterctl.launcher.display.dashboard import pages
from clusterctl.launcher.display.explanation import Causes, explanation, pause_after, state_of
from clusterctl.launcher.display.plain import plain
from clusterctl.launcher.display.report.markup import policy_with
from clusterctl.launcher.display.report.page import examine, page
from clusterctl.launcher.display.report.several import SCRIPT
from clusterctl.launcher.display.report.several import page as several_page
from clusterctl.launcher.observe.comparison import Seen, Several, examine_sweep
from clusterctl.launcher.observe.overview import Overview
from clusterctl.launcher.observe.run_names import is_run_id
from clusterctl.launcher.observe.runs import is_written
from clusterctl.launcher.slurm import Slurm
from clusterctl.shared.errors import ClusterctlError, NotFoundError, UsageError, reason
from clusterctl.shared.record.files import exists
from clusterctl.shared.record.interpreter import adding
from clusterctl.shared.record.layout import RunDir, SweepDir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from wsgiref.types import StartResponse, WSGIEnvironment

    from clusterctl.launcher.display.report.markup import Markup
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.observe.status import RunStatuses
    from clusterctl.shared.spec import Cluster


_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_REPORT_POLICY = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_ALWAYS = (
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
_HOST = re.compile(r"(?:127\.0\.0\.1|localhost)(?::[0-9]{1,5})?", re.IGNORECASE)  # any port, for port forwards
_RUN_PAGE = re.compile(r"/run/(?P<id>[^/]+)(?:/(?P<part>logs|why|report))?")
_SWEEP_PAGE = re.compile(r"/sweep/(?P<id>[^/]+)(?P<report>/report)?")
_FILES = {"/style.css": "text/css", "/script.js": "text/javascript"}
_FORBIDDEN = "403: open the address printed by `clusterctl dashboard`; if you followed a link to it, reload the page\n"


@dataclass(frozen=True)
class Response:
    status: HTTPStatus
    body: str
    kind: str = "text/plain"
    policy: str = _POLICY
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Application:
    """Serves the runs in `data`. `cookie` names this server's cookie: all ports of a host share their cookies."""

    data: DashboardData
    token: str = field(repr=False)
    cookie: str

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        answer = self._refusal(environ) or self._answer(environ)
        body = answer.body.encode(errors="replace")
        sized = ("Content-Type", f"{answer.kind}; charset=utf-8"), ("Content-Length", str(len(body)))
        policy = "Content-Security-Policy", answer.policy
        start_response(f"{answer.status.value} {answer.status.phrase}", [*sized, policy, *_ALWAYS, *answer.headers])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _refusal(self, environ: WSGIEnvironment) -> Response | None:
        """The response to a request that is refused or redirected; None if it is to be answered."""
        if not _HOST.fullmatch(environ.get("HTTP_HOST", "")):
            return Response(HTTPStatus.FORBIDDEN, "403: the host must be 127.0.0.1 or localhost\n")
        given = parse_qs(environ.get("QUERY_STRING", "")).get("token")
        is_first = bool(given and self._is_token(given[0]))
        try:
            cookie = SimpleCookie(environ.get("HTTP_COOKIE", "")).get(self.cookie)
        except CookieError:
            cookie = None
        if not (is_first or self._is_token(cookie.value if cookie else "")):
            return Response(HTTPStatus.FORBIDDEN, _FORBIDDEN)
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return Response(
                HTTPStatus.METHOD_NOT_ALLOWED, "405: only GET and HEAD are allowed\n", headers=(("Allow", "GET, HEAD"),)
            )
        if is_first:
            wanted = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
            here = "/" + quote(environ.get("PATH_INFO", "").strip("/"))  # `//name` would redirect to another host
            return Response(HTTPStatus.SEE_OTHER, "", headers=(("Location", here), ("Set-Cookie", wanted)))
        return None

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(errors="replace"), self.token.encode())

    def _answer(self, environ: WSGIEnvironment) -> Response:
        path = environ.get("PATH_INFO", "")
        if path in _FILES:
            return Response(HTTPStatus.OK, self._files[path], _FILES[path])
        try:
            if path == "/":
                wanted = pages.Wanted.of(parse_qs(environ.get("QUERY_STRING", "")))
                with self.data.runs.seen() as found:
                    main = pages.runs(found, wanted, self.data.causes)
                return Response(HTTPStatus.OK, pages.document("runs", [], main, wanted.words), "text/html")
            if match := _SWEEP_PAGE.fullmatch(path):
                with self.data.sweep(match["id"]).seen() as several:
                    if match["report"]:
                        return _report(several_page(several), SCRIPT)
                    links = [pages.ALL_RUNS, pages.report_link(f"/sweep/{match['id']}")]
                    return _shown(match["id"], links, pages.sweep(several))
            if match := _RUN_PAGE.fullmatch(path):
                return self._run_page(match["id"], match["part"] or "")
            raise NotFoundError(f"no such page: {plain(path)}")
        except NotFoundError as error:
            return _trouble(HTTPStatus.NOT_FOUND, error)
        except ClusterctlError as error:
            return _trouble(HTTPStatus.SERVICE_UNAVAILABLE, error)
        except OSError as error:  # a file server may come back
            return _trouble(HTTPStatus.SERVICE_UNAVAILABLE, ClusterctlError(reason(error)))

    def _run_page(self, run_id: str, part: str) -> Response:
        run = self.data.run(run_id)
        if part == "report":
            with self.data.report(run_id).seen() as text:
                return _report(text)
        if part == "why":
            main = pages.why(run.why())
        elif part == "logs":
            with run.scene.seen() as scene:
                main = pages.log(scene)
        else:
            with run.scene.seen() as scene:
                ended = scene.selected is not None and scene.selected.status.state.ended
            findings = run.why() if ended else ()  # once; refreshing an active run must not cost a diagnosis
            with run.scene.seen() as scene:
                main = pages.run(scene, findings)
        return _shown(run_id, pages.run_links(run_id, part), main)

    @cached_property
    def _files(self) -> dict[str, str]:
        ours, report = files("clusterctl.launcher.display.dashboard"), files("clusterctl.launcher.display.report")
        style = [folder.joinpath("style.css").read_text(encoding="utf-8") for folder in (report, ours)]
        scripts = report.joinpath(SCRIPT), ours.joinpath("script.js")
        code = "".join(script.read_text(encoding="utf-8") for script in scripts)
        return {"/style.css": "".join(style), "/script.js": code}


def _shown(title: str, links: list[Markup], main: Markup, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(status, pages.document(title, links, main), "text/html")


def _report(text: str, script: str = "") -> Response:
    """A report as it is in its file: its own policy allows its style and its script, and nothing else."""
    return Response(HTTPStatus.OK, text, "text/html", f"{policy_with(script)}; {_REPORT_POLICY}")


def _trouble(status: HTTPStatus, error: ClusterctlError) -> Response:
    return _shown("clusterctl", [pages.ALL_RUNS], pages.problems([error]), status)


# Serve the dashboard on the loopback interface until Ctrl-C.


try:
    import waitress
except ImportError:
    raise UsageError("dashboard needs waitress", adding("waitress")) from None


_LOOPBACK = "127.0.0.1"
_TOKEN_BYTES = 32
_MOST_HEADER_BYTES = 2**15
_SILENT_SECONDS = 30  # our pages ask again every few seconds


class Addresses(NamedTuple):
    """The port of the dashboard on this machine, and the token in its URL, without which it answers nobody."""

    port: int
    token: str

    @property
    def url(self) -> str:
        return f"http://{_LOOPBACK}:{self.port}/?token={self.token}"

    @property
    def forward(self) -> str:
        """The command that forwards the port to another machine."""
        return f"ssh -N -L {self.port}:{_LOOPBACK}:{self.port} {socket.gethostname()}"


def serve(data: DashboardData, port: int, announce: Callable[[Addresses], object]) -> None:
    """Answer requests on `port` (0: a free one) until KeyboardInterrupt; `announce` gets the addresses first.

    Raises UsageError if the port is not available.
    """
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the last server may linger
        listening.bind((_LOOPBACK, port))
        listening.listen()
    except OSError as error:
        listening.close()
        hint = "leave out `port=` to use a free one"
        raise UsageError(f"cannot listen on port {port}: {error.strerror}", hint) from error
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # do not warn about a slow file system
    application = Application(data, token, f"clusterctl-{port}")
    # By default, waitress stores up to 1 GiB of a request's body before the application can see whose it is.
    server = waitress.create_server(
        application, sockets=[listening], ident="clusterctl", max_request_body_size=1,
        max_request_header_size=_MOST_HEADER_BYTES, channel_timeout=_SILENT_SECONDS,
    )  # fmt: skip
    try:
        announce(Addresses(port, token))
        server.run()
    except KeyboardInterrupt:  # before the server handles it
        server.close()


T = TypeVar("T")
LOOK_SECONDS = 2.0
_SHARE = 0.2  # of the time spent reading, at most, even on a slow file system
_MOST_KEPT = 16  # runs, and sweeps, kept in memory


class Refreshed(Generic[T]):
    """Caches the result of `look` until it is due again; used by one thread at a time."""

    def __init__(
        self,
        look: Callable[[], T],
        clock: Callable[[], float],
        pause: Callable[[float], float] = lambda took: max(LOOK_SECONDS, took / _SHARE),
    ) -> None:
        self._look, self._clock, self._pause = look, clock, pause
        self._lock = Lock()
        self._seen: tuple[T, float] | None = None  # and when to look again

    @contextmanager
    def seen(self) -> Iterator[T]:
        """The newest result. It must not be used after the block."""
        with self._lock:
            if self._seen is None or self._clock() >= self._seen[1]:
                began = self._clock()
                found = self._look()
                now = self._clock()
                self._seen = found, now + self._pause(now - began)
            yield self._seen[0]


class LiveRun:
    """One run with its curves and log (`scene`), and its diagnosis (`why`)."""

    def __init__(self, overview: Overview, clock: Callable[[], float]) -> None:
        self.scene = Refreshed(overview.look, clock)
        self._slurm_of, self._clock = overview.slurm_of, clock
        self._status: Status | None = None
        self._why: tuple[str, Refreshed[tuple[str, ...]]] | None = None  # the state and its diagnosis

    def why(self) -> tuple[str, ...]:
        """The lines of the diagnosis, repeated only when it may have changed; or why the run cannot be read."""
        with self.scene.seen() as scene:
            if scene.selected is None:
                return tuple(problem.text for problem in scene.problems)
            self._status = scene.selected.status
        state = state_of(self._status)
        if self._why is None or self._why[0] != state:
            status = self._status

            def explain() -> tuple[str, ...]:
                assert self._status is not None
                return tuple(explanation(diagnose_status(self._status, self._slurm_of)))

            self._why = state, Refreshed(explain, self._clock, lambda took: pause_after(status, took))
        with self._why[1].seen() as lines:
            return lines


class RecentlyUsed(Generic[T]):
    """A cache of values by name that drops the least recently used ones."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, T] = OrderedDict()
        self._lock = Lock()

    def get(self, name: str, make: Callable[[], T]) -> T:
        with self._lock:
            if name not in self._values:
                self._values[name] = make()
            self._values.move_to_end(name)
            if len(self._values) > _MOST_KEPT:
                self._values.popitem(last=False)
            return self._values[name]


class DashboardData:
    """The runs in `folder`: the list returned by `look`, and each run and sweep requested by a page."""

    def __init__(
        self,
        folder: Path,
        look: Callable[[], RunStatuses],
        slurm_of: Callable[[Cluster], Slurm] = Slurm.of,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.runs, self.causes = Refreshed(look, clock), Causes(folder)
        self._folder, self._slurm_of, self._clock = folder, slurm_of, clock
        self._live, self._sweeps = RecentlyUsed[LiveRun](), RecentlyUsed[Refreshed[Several]]()
        self._reports = RecentlyUsed[Refreshed[str]]()

    def run(self, run_id: str) -> LiveRun:
        """Raises NotFoundError."""

        def live_run() -> LiveRun:
            run = self._directory(run_id)
            return LiveRun(Overview(self._folder, runs=(run,), slurm_of=self._slurm_of), self._clock)

        return self._live.get(run_id, live_run)

    def report(self, run_id: str) -> Refreshed[str]:
        """The report on a run, as a file without links to other files. Raises NotFoundError."""

        def refreshed() -> Refreshed[str]:
            run = self._directory(run_id)
            return Refreshed(lambda: page(examine(run, None, self._slurm_of)), self._clock)

        return self._reports.get(run_id, refreshed)

    def _directory(self, run_id: str) -> RunDir:
        if not is_run_id(run_id) or not is_written(self._folder, run_id):
            raise NotFoundError(f"no run named: {run_id}", "see the runs with: clusterctl status")
        return RunDir(self._folder / run_id)

    def sweep(self, sweep_id: str) -> Refreshed[Several]:
        """Raises NotFoundError."""

        def refreshed() -> Refreshed[Several]:
            sweep, seen = SweepDir.of(self._folder, sweep_id), Seen()
            if not is_run_id(sweep_id) or not exists(sweep.sweep_json):
                raise NotFoundError(f"no sweep named: {sweep_id}", "see the runs with: clusterctl status")
            return Refreshed(lambda: examine_sweep(sweep, None, self._slurm_of, seen=seen), self._clock)

        return self._sweeps.get(sweep_id, refreshed)
