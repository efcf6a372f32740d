"""Which requests the dashboard answers, and how."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from support.counted import counted
from support.made_runs import busy_files
from support.mistake import check_plain

from clusterctl.launcher.display.dashboard import application
from clusterctl.shared.record.layout import RunDir, SweepDir

from .conftest import TOKEN, Server

Serve = Callable[[], Server]
Fabricate = Callable[..., RunDir]
RUN = "cora-20260102-030405-00a1"
SWEEP = "lr-20260103-030405-00a1"
HOSTILE = "\x1b[31m</pre></title><script>alert(1)</script><img src=http://192.0.2.1/x onerror=alert(1)>\u202e\x00"
ENDED = {
    "submission.json": {"job_id": "7"},
    "attempts/0/host.json": {"attempt": 0, "job_id": "7", "start": 1.0, "end": 2.0, "exit_code": 0, "signal": ""},
    "finished.json": {"time": 2.0},
}
FAILED = {
    **ENDED,
    "finished.json": "",
    "attempts/0/host.json": {"attempt": 0, "job_id": "7", "start": 1.0, "end": 2.0, "exit_code": 3, "nodes": HOSTILE},
    "attempts/0/logs/rank_00000.out": f"{HOSTILE}\nlast words\n",
    "attempts/0/events/rank_00000.jsonl": [{"time": 1.5, "event": "exception", "type": HOSTILE, "message": HOSTILE}],
    "attempts/0/metrics.jsonl": [{"time": 1.0 + step, "step": step, HOSTILE: step} for step in range(9)],
}


@pytest.fixture
def busy(fabricate: Fabricate) -> RunDir:
    return fabricate(RUN, busy_files())


def make_sweep(fabricate: Fabricate, settings: list[list[str]]) -> None:
    for place, _ in enumerate(settings):
        run = fabricate(f"{SWEEP}.{place}", ENDED)
    sweep = SweepDir.of(run.path.parent, SWEEP)
    sweep.path.mkdir(parents=True)
    sweep.sweep_json.write_text(json.dumps({"schema_version": 1, "created": 1.0, "runs": settings}))


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name == "style"]
        if tag == "a":
            self.links.append(dict(attrs)["href"] or "")


@pytest.mark.parametrize("path", ["/", f"/run/{RUN}", "/style.css", "/script.js", "/nowhere"])
@pytest.mark.parametrize("cookie", ["", f"PORT={'x' * 43}", f"other={TOKEN}", "PORT=", "PORT=\xff", "=;;=", "PORT"])
def test_without_the_token_nothing_is_shown_and_no_file_is_opened(
    serve: Serve, busy: RunDir, path: str, cookie: str
) -> None:
    server = serve()
    with counted(busy.path.parent) as count:
        reply = server.ask(path, Cookie=cookie.replace("PORT", f"clusterctl-{server.port}"))
    assert (reply.status, count.opens, count.stats) == (403, 0, 0)
    assert RUN not in reply.body
    assert "Set-Cookie" not in reply.headers


def test_the_token_in_the_address_becomes_a_cookie(serve: Serve, busy: RunDir) -> None:
    server = serve()
    assert server.ask(f"/?token={TOKEN}x").status == 403
    assert server.ask("/?token=%C3%A9%FF").status == 403
    reply = server.ask(f"/run/{RUN}?token={TOKEN}")
    assert (reply.status, reply.headers["Location"]) == (303, f"/run/{RUN}")
    value, *attributes = reply.headers["Set-Cookie"].split("; ")
    assert (value, sorted(attributes)) == (server.cookie, ["HttpOnly", "Path=/", "SameSite=Strict"])
    assert TOKEN not in server.page("/")


@pytest.mark.parametrize("path", ["//192.0.2.1/x", "/%2F192.0.2.1", "/\\192.0.2.1", "/x%0d%0aSet-Cookie:%20a=b"])
def test_the_token_redirect_stays_on_this_host(serve: Serve, path: str) -> None:
    reply = serve().ask(f"{path}?token={TOKEN}")
    assert reply.status == 303
    assert reply.headers["Location"][0] == "/"
    assert reply.headers["Location"][1] not in "/\\"
    assert reply.headers["Set-Cookie"].startswith("clusterctl-")


@pytest.mark.parametrize(
    "host", ["192.0.2.1", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "", "127.0.0.1:x"]
)
def test_another_host_name_is_refused_even_with_the_token(serve: Serve, busy: RunDir, host: str) -> None:
    server = serve()
    for path in ("/", f"/?token={TOKEN}"):
        assert server.ask(path, Host=host, Cookie=server.cookie).status == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:65535", "LOCALHOST:8888"])
def test_a_port_forward_may_use_any_local_port(serve: Serve, busy: RunDir, host: str) -> None:
    server = serve()
    assert server.ask("/", Host=host, Cookie=server.cookie).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_get_and_head_are_allowed(serve: Serve, busy: RunDir, method: str) -> None:
    server = serve()
    for path in ("/", f"/?token={TOKEN}"):
        reply = server.ask(path, method, Cookie=server.cookie)
        assert (reply.status, reply.headers["Allow"]) == (405, "GET, HEAD")
        assert "Set-Cookie" not in reply.headers


def test_head_matches_get_without_the_body(serve: Serve, busy: RunDir) -> None:
    server = serve()
    reply, whole = (server.ask("/script.js", method, Cookie=server.cookie) for method in ("HEAD", "GET"))
    assert (reply.status, reply.body) == (200, "")
    assert reply.headers["Content-Length"] == str(len(whole.body))


@pytest.mark.parametrize("path", ["/", f"/run/{RUN}", f"/run/{RUN}/logs", "/nowhere", "/script.js", "/style.css"])
def test_every_response_has_a_strict_content_security_policy(serve: Serve, busy: RunDir, path: str) -> None:
    server = serve()
    for cookie in (server.cookie, ""):
        headers = server.ask(path, Cookie=cookie).headers
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        assert policy.pop("default-src") == "'none'"
        assert set(policy.values()) == {"'self'", "'none'"}
        assert (policy["frame-ancestors"], policy["base-uri"], policy["form-action"]) == ("'none'",) * 3
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    [
        "/nowhere", "/run/", "/run/x", f"/run/{RUN}/report.html", f"/run/{RUN}/../../etc/passwd", "/run/..%2f..%2fetc",
        "/run/cora-20260102-030405-ffff", f"/sweep/{RUN}", "/sweep/%00", "/run/%ff%fe", "/<script>", "/style.css/",
    ],
)  # fmt: skip
def test_a_page_that_does_not_exist_is_not_found(serve: Serve, busy: RunDir, path: str) -> None:
    server = serve()
    reply = server.ask(path, Cookie=server.cookie)
    assert reply.status == 404
    assert "<script>" not in reply.body


def test_output_of_a_run_is_escaped_on_every_page(serve: Serve, fabricate: Fabricate) -> None:
    run = fabricate(RUN, FAILED)
    run.finished_json.unlink()
    make_sweep(fabricate, [[f"env.X={HOSTILE}"], [f"{HOSTILE}=1"]])
    fabricate(f"{HOSTILE[:-1].replace('/', '')}-20260102-030405-00a1", ENDED)
    server = serve()
    pages = {path: server.page(path) for path in ("/", f"/run/{RUN}", f"/run/{RUN}/logs", f"/run/{RUN}/why")}
    pages |= {path: server.page(path) for path in ("/?state=<script>", f"/sweep/{SWEEP}", f"/run/{SWEEP}.0")}
    for path, text in pages.items():
        check_plain(text)
        found = Tags(text).found
        assert found.count("script") == 1, path
        assert "img" not in found
        assert "&lt;script&gt;alert(1)" in text or path in ("/", "/?state=<script>", f"/run/{SWEEP}.0")
    assert "last words" in pages[f"/run/{RUN}/logs"]


def test_every_link_leads_to_a_page(serve: Serve, fabricate: Fabricate, busy: RunDir) -> None:
    make_sweep(fabricate, [["train.lr=1"], ["train.lr=2"]])
    server = serve()
    seen: dict[str, str] = {}
    waiting = ["/"]
    while waiting:
        if (path := waiting.pop()) not in seen:
            seen[path] = server.page(path)
            waiting += Tags(seen[path]).links
    assert {"/", "/?state=finished", f"/sweep/{SWEEP}", f"/run/{SWEEP}.1", f"/run/{RUN}/why"} <= seen.keys()


def test_a_sweep_is_one_row_and_its_page_shows_each_runs_settings(serve: Serve, fabricate: Fabricate) -> None:
    make_sweep(fabricate, [["train.lr=0.25"], ["train.lr=0.5"], ["train.seed=3"]])
    server = serve()
    text = server.page("/")
    assert (text.count("<tr"), text.count('class="noted"'), text.count('class="note"')) == (3, 1, 1)
    assert ">3 runs</td>" in text
    assert "3 finished" in text
    assert server.page("/?state=finished").count("<tr>") == 4
    assert "no matching runs" in server.page("/?state=failed")
    page = server.page(f"/sweep/{SWEEP}")
    for shown in (">train.lr</th>", ">0.25</td>", ">0.5</td>", ">train.seed</th>", f'<a href="/run/{SWEEP}.2">2</a>'):
        assert shown in page


NEWEST, MIDDLE, OLDEST = (f"{name}-20260104-03040{place}-00a1" for name, place in (("c", 7), ("b", 6), ("a", 5)))


def named_runs(fabricate: Fabricate) -> None:
    """Three runs with different losses, notes, tags and clusters; the newest was cancelled."""
    for run_id, loss, tags, cluster in (
        (NEWEST, 2.0, [], "x"),
        (MIDDLE, 1.0, ["paper"], "y"),
        (OLDEST, 3.0, ["second"], "x"),
    ):
        metrics = [{"time": 1.5, "step": 1, "loss": loss}]
        run = fabricate(run_id, {**ENDED, "attempts/0/metrics.jsonl": metrics})
        record = json.loads(run.run_json.read_text())
        record["job"] |= {"tags": tags, "note": "Larger Batch" if tags else None}
        record["cluster"]["name"] = cluster
        run.run_json.write_text(json.dumps(record))
    run = RunDir(run.path.parent / NEWEST)
    run.finished_json.unlink()
    host = {"attempt": 0, "job_id": "7", "start": 1.0, "end": 2.0, "exit_code": 143, "signal": "TERM"}
    (run.path / "attempts/0/host.json").write_text(json.dumps(host))
    run.cancel_json.write_text(json.dumps({"time": 1.5}))


def listed(text: str) -> list[str]:
    return [link.removeprefix("/run/") for link in Tags(text).links if link.startswith("/run/")]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("/", [NEWEST, MIDDLE, OLDEST]),
        ("/?sort=loss", [MIDDLE, NEWEST, OLDEST]),
        ("/?sort=-loss", [OLDEST, NEWEST, MIDDLE]),
        ("/?sort=run", [OLDEST, MIDDLE, NEWEST]),
        ("/?q=paper", [MIDDLE]),
        ("/?q=larger+batch", [MIDDLE, OLDEST]),
        ("/?q=larger&sort=loss", [MIDDLE, OLDEST]),
        ("/?q=a-2026", [OLDEST]),
        ("/?state=cancelled", [NEWEST]),
        ("/?sort=nonsense&page=x&state=y", [NEWEST, MIDDLE, OLDEST]),
        ("/?page=99", [NEWEST, MIDDLE, OLDEST]),
        ("/?sort=gpu", [NEWEST, MIDDLE, OLDEST]),
        (f"/?q={'x' * 5000}", []),
        ("/?page=%D9%A3", [NEWEST, MIDDLE, OLDEST]),
    ],
)
def test_runs_are_sorted_searched_and_filtered_by_their_address(
    serve: Serve, fabricate: Fabricate, address: str, expected: list[str]
) -> None:
    named_runs(fabricate)
    assert listed(serve().page(address)) == expected


def test_the_list_shows_clusters_and_tags_and_a_cancelled_run_is_not_red(serve: Serve, fabricate: Fabricate) -> None:
    named_runs(fabricate)
    page = serve().page("/")
    assert '<td class="narrow state cancelled">cancelled</td>' in page
    assert '<i class="cancelled"></i>1 cancelled' in page
    assert '<a href="/?q=paper" class="label">paper</a>' in page
    assert page.count('<td class="wide">x</td>') == 2


@pytest.mark.parametrize(("sort", "order"), [("loss", "ascending"), ("tasks", "descending"), ("age", "ascending")])
def test_the_sorted_column_shows_the_order_of_its_values(
    serve: Serve, fabricate: Fabricate, sort: str, order: str
) -> None:
    named_runs(fabricate)
    orders = {"ascending", "descending"}
    for address, expected in ((sort, order), (f"-{sort}", *orders - {order})):
        page = serve().page(f"/?sort={address}")
        assert re.findall('aria-sort="([a-z]*)"', page) == [expected]


def test_notes_are_below_their_runs_and_no_column(serve: Serve, fabricate: Fabricate) -> None:
    named_runs(fabricate)
    page = serve().page("/")
    rows = re.findall(r"<tr[^>]*>.*?</tr>", page)
    assert not [row for row in rows if "<th" in row and "note" in row]
    columns = rows[0].count("<th")
    noted = [place for place, row in enumerate(rows) if row.startswith('<tr class="noted">')]
    assert [MIDDLE in rows[noted[0]], OLDEST in rows[noted[1]], len(noted)] == [True, True, 2]
    for place in noted:
        assert rows[place].count("<td") == columns
        assert rows[place + 1] == f'<tr class="note"><td colspan="{columns}">Larger Batch</td></tr>'


def test_fifty_runs_are_a_page(serve: Serve, fabricate: Fabricate) -> None:
    for number in range(51):
        fabricate(f"cora-20260101-0000{number:02}-00a1", ENDED)
    server = serve()
    first, second = server.page("/"), server.page("/?page=2")
    assert (len(listed(first)), len(listed(second))) == (50, 1)
    assert not set(listed(first)) & set(listed(second))
    assert "1 to 50 of 51" in first
    assert "/?page=2" in Tags(first).links


def test_a_report_is_served_as_it_is_written_to_a_file(serve: Serve, fabricate: Fabricate, busy: RunDir) -> None:
    make_sweep(fabricate, [["train.lr=1"], ["train.lr=2"]])
    server = serve()
    for path, scripts in ((f"/run/{RUN}/report", 0), (f"/sweep/{SWEEP}/report", 1)):
        reply = server.ask(path, Cookie=server.cookie)
        assert (reply.status, Tags(reply.body).links) == (200, [])
        assert Tags(reply.body).found.count("script") == scripts
        policy = dict(part.split(" ", 1) for part in reply.headers["Content-Security-Policy"].split("; "))
        assert (policy["default-src"], policy["style-src"]) == ("'none'", "'unsafe-inline'")
        assert policy.get("script-src", "'sha256-'").startswith("'sha256-")
        assert (policy["frame-ancestors"], policy["form-action"]) == ("'none'", "'none'")
        assert server.ask(path).status == 403


def test_the_page_of_a_run_has_the_sections_of_its_report_and_its_log(serve: Serve, busy: RunDir) -> None:
    server = serve()
    page = server.page(f"/run/{RUN}")
    for title in ("Curves", "Efficiency", "Phases", "Nodes and ranks"):
        assert f"<h2>{title}</h2>" in page
    assert page.count("<svg") > 10
    assert "epoch 30/40" in server.page(f"/run/{RUN}/logs")
    assert "no answer from &lt;b&gt;slurmctld&lt;/b&gt;" in page
    assert f"{RUN} " in server.page(f"/run/{RUN}/why")


def test_a_failed_run_shows_why_on_its_first_page_and_its_cause_in_the_list(serve: Serve, fabricate: Fabricate) -> None:
    run = fabricate(RUN, FAILED)
    run.finished_json.unlink()
    event = {"event": "exception", "type": "ValueError", "message": "no <b>layer</b>", "time": 50}
    path = run.attempt(0).path / "events" / "rank_00000.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(one)}\n" for one in ({"event": "began", "node": "node1"}, event)))
    server = serve()
    assert "<h2>Why</h2>" in server.page(f"/run/{RUN}")
    assert "ValueError: no &lt;b&gt;layer&lt;/b&gt;" in server.page("/")


@pytest.mark.parametrize("damage", ["{", "[]", ""])
def test_a_damaged_run_is_reported_and_hides_no_other(serve: Serve, fabricate: Fabricate, damage: str) -> None:
    fabricate("cora-20260101-000000-0000", ENDED)
    fabricate(RUN, {"run.json": damage})
    make_sweep(fabricate, [["train.lr=1"]])
    sweep = SweepDir.of(fabricate().path.parent, SWEEP)
    fabricate(RUN, {"run.json": damage})
    sweep.sweep_json.write_text(damage)
    server = serve()
    assert "cora-20260101-000000-0000" in server.page("/")
    for path in ("/", f"/run/{RUN}", f"/run/{RUN}/logs", f"/run/{RUN}/why"):
        assert "run.json" in server.page(path), path
    reply = server.ask(f"/sweep/{SWEEP}", Cookie=server.cookie)
    assert reply.status == 503
    assert "sweep.json" in reply.body


def test_an_unreachable_file_server_is_reported_until_it_comes_back(
    serve: Serve, busy: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()

    def unreachable(*_: Any) -> Any:
        raise OSError(5, "Input/output error", "/runs")

    with monkeypatch.context() as patched:
        patched.setattr("clusterctl.launcher.observe.runs.os.listdir", unreachable)
        reply = server.ask("/", Cookie=server.cookie)
    assert reply.status == 503
    assert "/runs: Input/output error" in reply.body
    assert RUN in server.page("/")


def test_the_token_is_compared_in_constant_time(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(application.hmac, "compare_digest", lambda *both: asked.append(both) or False)
    server = serve()
    for reply in (server.ask(f"/?token={TOKEN}"), server.ask("/", Cookie=server.cookie)):
        assert reply.status == 403
    assert (TOKEN.encode(), TOKEN.encode()) in asked
