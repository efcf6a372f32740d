"""The cost of open pages: one refresh for all of them, and none without requests."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable

import pytest
from support.counted import counted
from support.made_runs import busy_files
from support.recorded import claim

from clusterctl.launcher.display.dashboard import application
from clusterctl.launcher.display.dashboard.application import LOOK_SECONDS, RecentlyUsed, Refreshed
from clusterctl.launcher.display.explanation import pause_after, state_of
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State

from .conftest import Server
from .test_application import ENDED, RUN, SWEEP, make_sweep

Serve = Callable[[], Server]
Fabricate = Callable[..., RunDir]
MANY = 500


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_refresh_is_shared_until_it_expires() -> None:
    clock, looks = Clock(), iter(range(9))
    glance = Refreshed(lambda: next(looks), clock)
    seen = []
    for clock.now in (0.0, 1.0, LOOK_SECONDS - 0.1, LOOK_SECONDS, LOOK_SECONDS + 1):
        with glance.seen() as number:
            seen.append(number)
    assert seen == [0, 0, 0, 1, 1]


def test_a_slow_refresh_is_followed_by_a_longer_pause() -> None:
    clock, looks = Clock(), []

    def look() -> None:
        looks.append(clock.now)
        clock.now += 10  # the file system is slow

    glance = Refreshed(look, clock)
    while clock.now < 100:
        with glance.seen():
            clock.now += 1
    assert sum(10 for _ in looks) <= 0.2 * clock.now + 10


def test_concurrent_requests_share_one_refresh() -> None:
    looks, may_end = [], threading.Event()

    def look() -> int:
        looks.append(1)
        may_end.wait(30)
        return len(looks)

    glance, seen = Refreshed(look, Clock()), []

    def ask() -> None:
        with glance.seen() as found:
            seen.append(found)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    may_end.set()
    for thread in threads:
        thread.join()
    assert seen == [1] * 4


def test_a_failed_refresh_is_retried() -> None:
    answers = iter([OSError("away"), "back"])

    def look() -> str:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    glance = Refreshed(look, Clock())
    with pytest.raises(OSError, match="away"), glance.seen():
        pass
    with glance.seen() as found:
        assert found == "back"


def test_the_least_recently_used_runs_are_dropped() -> None:
    few: RecentlyUsed[object] = RecentlyUsed()
    first = few.get("0", object)
    for number in range(application._MOST_KEPT):
        assert few.get("0", object) is first
        few.get(f"other {number}", object)
    for number in range(application._MOST_KEPT):
        few.get(f"other {number}", object)
    assert few.get("0", object) is not first


@pytest.mark.long
def test_500_runs_are_read_once_and_then_only_statted(serve: Serve, fabricate: Fabricate) -> None:
    for number in range(MANY):
        fabricate(f"cora-20260101-{number:06}-00a1", ENDED)
    server = serve()
    folder = server.folder
    with counted(folder) as first:
        page = server.page("/")
    assert page.count('href="/run/') == 50
    assert len(page) < 25_000
    assert first.opens <= 10 * MANY
    server.later()
    with counted(folder) as again:
        pages = [server.page(path) for path in ("/", "/", "/?state=finished")]
    assert len(set(pages)) == 2
    assert (again.opens, again.listings) == (0, 0)  # below the folder of runs
    assert again.stats <= 3 * MANY
    with counted(folder) as young:
        server.page("/")
    assert (young.opens, young.listings, young.stats) == (0, 0, 0)


def test_only_the_new_part_of_a_growing_run_is_read(serve: Serve, fabricate: Fabricate) -> None:
    run = fabricate(RUN, busy_files())
    server = serve()
    paths = (f"/run/{RUN}", f"/run/{RUN}/logs", f"/run/{RUN}")
    assert "<dd>300/400</dd>" in server.page(paths[0])
    log = run.attempt(1).log(0)
    with run.attempt(1).metrics.open("a") as metrics, log.open("a") as out:
        metrics.write(json.dumps({"time": 1_000_700.0, "step": 399, "steps": 400, "loss": 0.125}) + "\n")
        out.write("\x1b[1mepoch 39/40\x1b[0m\n")
    server.later()
    with counted(server.folder) as count:
        page, shown, same = map(server.page, paths)
    assert "<dd>399/400</dd>" in page
    assert ">epoch 39/40\n" in shown or "\nepoch 39/40<" in shown
    assert page == same
    assert count.opens <= 30  # as many as one refresh of the monitor
    assert max(count.opened.values()) <= 3


def test_slurm_is_queried_per_refresh_and_not_per_request(serve: Serve, fabricate: Fabricate) -> None:
    fabricate(RUN, busy_files())
    make_sweep(fabricate, [["train.lr=1"]])
    server = serve()
    assert server.slurm.queries == 0  # no page has been requested
    for _ in range(3):
        for path in ("/", f"/run/{RUN}", f"/run/{RUN}/logs", f"/sweep/{SWEEP}"):
            server.page(path)
    assert server.slurm.queries <= 2  # the list, and the run


def test_an_ended_run_is_explained_once_and_again_after_a_resume(
    serve: Serve, fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[State] = []
    real = application.diagnose_status
    monkeypatch.setattr(
        application, "diagnose_status", lambda status, slurm_of: asked.append(status.state) or real(status, slurm_of)
    )
    run = fabricate(RUN, ENDED)
    server = serve()
    for _ in range(3):
        server.page(f"/run/{RUN}")
        server.page(f"/run/{RUN}/why")
        server.later()
    assert asked == [State.FINISHED]
    run.finished_json.unlink()
    claim(run.attempt(1))
    server.page(f"/run/{RUN}/why")
    assert len(asked) == 2
    assert asked[1] is not State.FINISHED


def test_the_pause_after_a_diagnosis_depends_on_the_state_and_its_cost(fabricate: Fabricate) -> None:
    from dataclasses import replace

    from clusterctl.launcher.observe.status import statuses_of
    from clusterctl.shared.errors import SlurmError

    class Silent:
        def snapshot(self) -> None:
            raise SlurmError("no answer")

        def accounted(self, job_ids: object) -> None:
            raise SlurmError("no answer")

    (busy,) = statuses_of([fabricate(RUN, busy_files())], lambda cluster: Silent()).statuses  # type: ignore[arg-type,return-value]
    assert (state_of(busy), pause_after(busy, 0.01), pause_after(busy, 1.0)) == ("alive", 3.0, 50.0)
    queued, ended = replace(busy, state=State.QUEUED), replace(busy, state=State.FAILED)
    assert (state_of(queued), pause_after(queued, 0.01)) == ("queued", 60.0)
    assert (state_of(ended), pause_after(ended, 0.01)) == ("ended", math.inf)
