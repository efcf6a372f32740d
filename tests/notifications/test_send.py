"""Sending a message to a real HTTP server and real commands, and the outcome."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.scenario import wait_until
from support.web_hook import TOKEN, WebHook, dead_url, web_hook

from clusterctl.launcher.notifications.notifier import Delivery, Outcome, to_command, to_webhook, within


@pytest.fixture
def server() -> Iterator[WebHook]:
    with web_hook() as hook:
        yield hook


def test_a_webhook_gets_json_once(server: WebHook) -> None:
    assert to_webhook(server.url, b'{"text": "hi"}', 5) == Delivery(Outcome.SENT)
    assert server.received == [{"text": "hi"}]


@pytest.mark.parametrize("status", [301, 400, 404, 500])
def test_an_error_response_means_refused(server: WebHook, status: int) -> None:
    server.manner = status
    assert to_webhook(server.url, b"{}", 5) == Delivery(Outcome.REFUSED, f"HTTP status {status}")


def test_a_redirect_is_not_followed(server: WebHook) -> None:
    server.manner = "redirect"
    assert to_webhook(server.url, b"{}", 5).outcome is Outcome.REFUSED
    assert len(server.paths) == 1


@pytest.mark.parametrize("manner", ["hang", "close"])
def test_without_an_answer_the_message_may_have_arrived(server: WebHook, manner: str) -> None:
    server.manner = manner
    assert to_webhook(server.url, b"{}", 0.3).outcome is Outcome.UNKNOWN


def test_a_byte_by_byte_response_times_out(server: WebHook) -> None:
    server.manner = "slow"
    began = time.monotonic()
    assert within(1.0, lambda: to_webhook(server.url, b"{}", 5)).outcome is Outcome.UNKNOWN
    assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    "url",
    [
        *("a port without a server", "https://127.0.0.1:1/x", "file:///etc/passwd", "ftp://127.0.0.1/x", TOKEN, ""),
        *(f"http://127.0.0.1/a b/{TOKEN}", f"http:///{TOKEN}", f"http://[::1/{TOKEN}", f"http://127.0.0.1:x/{TOKEN}"),
        f"http://nowhere.invalid/{TOKEN}",
    ],
)
def test_an_unusable_url_is_refused_without_revealing_it(url: str) -> None:
    url = dead_url() if url == "a port without a server" else url  # a different port at each collection
    answer = to_webhook(url, b"{}", 2)
    assert answer.outcome is Outcome.REFUSED
    assert answer.reason
    assert TOKEN not in answer.reason


def test_a_server_without_a_valid_certificate_is_refused(tmp_path: Path, server: WebHook) -> None:
    answer = to_webhook(server.url.replace("http:", "https:"), b"{}", 2)  # the server does not speak TLS
    assert answer.outcome is Outcome.REFUSED
    assert server.received == []


def test_a_command_reads_the_message(tmp_path: Path) -> None:
    argv = ["sh", "-c", 'cat >"$0" && echo "$CLUSTERCTL_EVENT" >>"$0"', str(tmp_path / "heard")]
    environment = {"PATH": "/usr/bin:/bin", "CLUSTERCTL_EVENT": "failed"}
    assert to_command(argv, "grüße\n", environment, 20) == Delivery(Outcome.SENT)
    assert (tmp_path / "heard").read_text() == "grüße\nfailed\n"


def test_a_failing_command_is_reported_and_reading_stdin_is_optional() -> None:
    assert to_command(["false"], "x" * 10**6, {"PATH": "/usr/bin:/bin"}, 20) == Delivery(Outcome.REFUSED, "exit code 1")
    assert to_command(["true"], "x" * 10**6, {"PATH": "/usr/bin:/bin"}, 20) == Delivery(Outcome.SENT)
    assert to_command(["no-such-program"], "", {}, 20).reason == "cannot start: No such file or directory"


def test_a_hanging_command_is_killed_with_its_children(tmp_path: Path) -> None:
    began = time.monotonic()
    argv = ["sh", "-c", 'sleep 60 & echo $! >"$0"; wait', str(tmp_path / "pid")]
    assert to_command(argv, "", {"PATH": "/usr/bin:/bin"}, 1).outcome is Outcome.UNKNOWN
    assert time.monotonic() - began < 20
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    wait_until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX", 5)
