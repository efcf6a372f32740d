"""The dashboard in a real browser."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest
from support.made_runs import busy_files
from support.screens import BROWSER, opened

from clusterctl.shared.record.layout import RunDir

from .conftest import TOKEN, Server
from .test_application import FAILED, HOSTILE, RUN, SWEEP, make_sweep

Serve = Callable[[], Server]
Fabricate = Callable[..., RunDir]
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium; as root: tests/install.sh browser")


def test_the_printed_address_opens_and_no_other_host_is_contacted(serve: Serve, fabricate: Fabricate) -> None:
    fabricate(RUN, busy_files())
    make_sweep(fabricate, [["train.lr=1"], ["train.lr=2"]])
    shown = opened(f"{serve().address}/?token={TOKEN}")
    assert (shown.console, shown.calls) == ([], [])
    assert shown.text("h1") == "runs"
    assert {f"/run/{RUN}", f"/sweep/{SWEEP}"} <= set(shown.links)


def test_an_open_page_follows_a_run_that_grows(serve: Serve, fabricate: Fabricate) -> None:
    """The server adds a step at every request; the page shows it without a reload."""
    run = fabricate(RUN, busy_files())
    server = serve()
    application, steps = server.application, iter(range(301, 400))
    growing = threading.Lock()

    def grows(environ: dict[str, str], start_response: object) -> object:
        if environ["PATH_INFO"] == f"/run/{RUN}" and not environ["QUERY_STRING"]:
            with growing, run.attempt(1).metrics.open("a") as metrics:
                metrics.write(json.dumps({"time": 1_000_700.0, "step": next(steps), "steps": 400, "loss": 0.1}) + "\n")
                server.later()
        return application(environ, start_response)  # type: ignore[misc]

    server.application = grows  # type: ignore[assignment]
    shown = opened(f"{server.address}/run/{RUN}?token={TOKEN}", milliseconds=10_000)
    (step,) = [text for text in shown.texts["dd"] if text.endswith("/400")]
    assert int(step.removesuffix("/400")) >= 302  # 301 came with the page itself
    assert shown.tags.count("main") == 1
    assert (shown.console, shown.calls) == ([], [])


def test_hostile_text_is_not_executed(serve: Serve, fabricate: Fabricate) -> None:
    fabricate(RUN, FAILED).finished_json.unlink()
    make_sweep(fabricate, [[f"env.X={HOSTILE}"]])
    server = serve()
    for path in (f"/run/{RUN}", f"/run/{RUN}/logs", f"/sweep/{SWEEP}"):
        shown = opened(f"{server.address}{path}?token={TOKEN}")
        assert (shown.console, shown.calls) == ([], [])
        assert shown.tags.count("script") == 1
        assert "img" not in shown.tags
        assert "<script>alert(1)</script>" in shown.text("main")
