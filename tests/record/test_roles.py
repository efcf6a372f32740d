"""Roles: where their ranks run, what placeholders stand for, and what rank 0 decides from what the ranks report."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.shared.node.role_plan import LONGEST_SECONDS, MEETING_SECONDS, Director, Roles, addresses_in
from clusterctl.shared.record.fields import Fields
from clusterctl.shared.record.roles import (
    Address,
    StoredShape,
    filled,
    known_names,
    labels,
    placeholders,
    seating,
    values_of,
)

SHAPES = st.builds(
    StoredShape,
    nodes=st.integers(1, 4),
    share=st.booleans(),
    tasks_per_node=st.integers(1, 3),
    cpus_per_task=st.integers(1, 4),
    gpus_per_node=st.integers(0, 4),
)


def fitting(shapes: list[StoredShape]) -> dict[str, StoredShape]:
    """As the checks at submission leave them: a role that shares follows one with at least as many nodes."""
    found: dict[str, StoredShape] = {}
    most = 0
    for number, shape in enumerate(shapes):
        share = shape.share and most > 0
        nodes = min(shape.nodes, most) if share else shape.nodes
        most = most if share else nodes
        found[f"r{number}"] = shape._replace(share=share, nodes=nodes)
    return found


@given(st.lists(SHAPES, min_size=1, max_size=6).map(fitting))
def test_every_rank_of_every_role_has_a_seat_and_resources_that_no_other_has(shapes: dict[str, StoredShape]) -> None:
    seated = seating(shapes)
    for name, shape in shapes.items():
        ranks = seated.ranks_of(name)
        assert [seated.seats[rank].rank for rank in ranks] == list(range(shape.nodes * (shape.tasks_per_node or 1)))
        for rank in ranks:
            seat = seated.seats[rank]
            assert rank // seated.tasks_per_node == seat.first_node + seat.node
            assert len(seat.cpus) == shape.cpus_per_task
            assert len(seat.gpus) == shape.gpus_per_node
    for node in range(seated.nodes):
        seats = [seated.seats[rank] for rank in seated.seats if rank // seated.tasks_per_node == node]
        cpus = [cpu for seat in seats for cpu in seat.cpus]
        assert sorted(cpus) == list(range(len(cpus)))
        assert len(cpus) <= seated.cpus_per_node <= seated.cpus_per_task * seated.tasks_per_node
        gpus = [gpu for seat in seats if seat.local_rank == 0 for gpu in seat.gpus]
        assert sorted(gpus) == list(range(seated.gpus_on[node]))
    assert max(seated.gpus_on) == seated.gpus_per_node


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{port}", "4711"),
        ("http://{host}:{port}/x", "http://10.0.0.1:4711/x"),
        ("--to={web-1.addresses}", "--to=10.0.0.1:4711,10.0.0.2:4712"),
        ('{"port": {"a": 1}}', '{"port": {"a": 1}}'),
        ("{{port}}", "{port}"),
        ("{{", "{"),
        ("{x:02d} {} { port }", "{x:02d} {} { port }"),
        ("{web-1.host}{rank}", "10.0.0.11"),
    ],
)
def test_placeholders_are_filled_in_and_other_braces_stay(text: str, expected: str) -> None:
    seated = seating({"web-1": StoredShape(2, False, 1, 1, 0)})
    addresses = [Address("10.0.0.1", 4711, 1), Address("10.0.0.2", 4712, 2)]
    assert filled(text, values_of(seated.seats[1], addresses[0], {"web-1": addresses})) == expected


@given(st.dictionaries(st.text(), st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner)), max_size=3))
def test_json_of_strings_without_braces_has_no_placeholders(value: dict[str, object]) -> None:
    text = json.dumps(value)
    if "{" not in json.dumps(list(value.items())):
        assert list(placeholders(text)) == []
        assert filled(text, dict.fromkeys(known_names(["a"]), "wrong")) == text


def test_labels_join_consecutive_ranks_of_a_role() -> None:
    assert labels([("features", 0), ("features", 1), ("trainer", 3)]) == "features r00-01, trainer r03"


JOB = {
    "restart": {"limit": 20, "without_progress": 2},
    "role": {
        "server": {"nodes": 2, "program": ["s"], "ready": "tcp://{host}:{port}", "ready_within": 60, "grace": 3},
        "trainer": {"nodes": 1, "program": ["t"], "needs": ["server"], "ends": "job", "grace": 7},
    },
}


class Stage:
    """A director with its ranks, which have all joined unless told otherwise; `sent` are the messages so far."""

    def __init__(self, *, joined: bool = True, **changes: object) -> None:
        job = json.loads(json.dumps(JOB))
        for key, value in changes.items():
            role, _, name = key.partition("_")
            job["role"][role][name] = value
        roles = Roles.of(Fields(job))
        assert roles is not None
        self.now = 100.0
        self.director = Director(roles, range(3))
        self.sent: list[tuple[int, dict[str, object]]] = []
        for rank in range(3) if joined else ():
            self.hear(rank, kind="joined", host=f"n{rank}", port=rank, meeting=rank)

    def hear(self, rank: int, **message: object) -> None:
        self.sent += self.director.hear(rank, Fields(message), self.now)

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.sent += self.director.tick(self.now)

    def of(self, kind: str) -> list[int]:
        return [rank for rank, message in self.sent if message["kind"] == kind]

    @property
    def end(self) -> tuple[object, object, object]:
        assert self.director.end is not None
        return self.director.end["how"], self.director.end["rank"], self.director.end["why"]

    def make_ready(self) -> None:
        self.hear(0, kind="ready")
        self.hear(1, kind="ready")


def test_nothing_starts_before_all_ranks_are_there() -> None:
    stage = Stage(joined=False)
    stage.hear(0, kind="joined", host="n0", port=1, meeting=2)
    stage.hear(1, kind="joined", host="n1", port=1, meeting=2)
    assert stage.of("start") == []
    stage.hear(2, kind="joined", host="n2", port=1, meeting=2)
    assert stage.of("start") == [0, 1]
    assert addresses_in(Fields(stage.sent[0][1]))["trainer"] == [Address("n2", 1, 2)]


def test_a_rank_that_never_comes_ends_the_job_and_is_named() -> None:
    stage = Stage(joined=False)
    stage.hear(0, kind="joined", host="n0", port=1, meeting=2)
    stage.hear(1, kind="joined", host="n1", port=1, meeting=2)
    stage.later(0)
    stage.later(MEETING_SECONDS)
    assert stage.director.end is None
    stage.later(1)
    assert stage.end == ("failed", 0, "trainer r00 did not connect to it within 300 s")


def test_a_role_starts_when_every_rank_of_the_roles_that_it_needs_is_ready() -> None:
    stage = Stage()
    stage.hear(0, kind="ready")
    assert stage.of("start") == [0, 1]
    stage.hear(1, kind="ready")
    assert stage.of("start") == [0, 1, 2]


def test_a_role_without_ready_counts_as_ready_once_started() -> None:
    assert Stage(server_ready="").of("start") == [0, 1, 2]


def test_the_job_finishes_with_the_role_that_ends_it() -> None:
    stage = Stage()
    stage.make_ready()
    stage.hear(2, kind="ended", code=0)
    assert stage.end == ("finished", None, "trainer has finished")
    assert stage.of("end") == [0, 1, 2]


def test_without_such_a_role_the_job_finishes_with_the_last_one() -> None:
    stage = Stage(trainer_ends="role", server_ready="")
    stage.hear(2, kind="ended", code=0)
    stage.hear(0, kind="ended", code=0)
    assert stage.director.end is None
    stage.hear(1, kind="ended", code=0)
    assert stage.end[0] == "finished"


def test_a_role_that_is_not_ready_in_time_ends_the_job_and_is_named() -> None:
    stage = Stage()
    stage.hear(0, kind="ready")
    stage.hear(1, kind="waiting", answer="connection refused")
    stage.later(59)
    assert stage.director.end is None
    stage.later(2)
    assert stage.end == ("failed", 1, "was not ready within 60 s: connection refused")


@pytest.mark.parametrize("was_ready", [True, False])
def test_a_server_that_exits_with_0_while_another_role_needs_it_has_failed(was_ready: bool) -> None:
    stage = Stage()
    if was_ready:
        stage.make_ready()
    stage.hear(1, kind="ended", code=0)
    assert stage.end[:2] == ("failed", 1)
    assert "exited with 0" in str(stage.end[2])
    assert "trainer needs it" in str(stage.end[2])


def test_a_preparation_may_exit_with_0_once_it_is_ready() -> None:
    stage = Stage(server_ready="file:/done")
    stage.make_ready()
    stage.hear(0, kind="ended", code=0)
    assert stage.director.end is None


def test_the_failure_of_a_needed_role_comes_first_even_if_it_is_reported_later() -> None:
    stage = Stage()
    stage.make_ready()
    stage.hear(2, kind="ended", code=1, why="cannot connect")
    assert stage.director.end is None
    stage.later(1)
    stage.hear(0, kind="ended", code=-15, why="killed")
    assert stage.end == ("failed", 0, "killed")


def test_a_failure_counts_by_itself_if_no_needed_role_follows() -> None:
    stage = Stage()
    stage.make_ready()
    stage.hear(2, kind="ended", code=1, why="wrong")
    stage.later(3)
    assert stage.end == ("failed", 2, "wrong")


def test_a_role_that_restarts_alone_is_started_again_until_it_makes_no_progress() -> None:
    stage = Stage(server_restart="role")
    stage.make_ready()
    for number in range(4):  # each time it gets ready: there is no end to it
        stage.hear(0, kind="ended", code=1, why="oops")
        assert stage.of("again") == [0] * (number + 1)
        stage.hear(0, kind="ready")
    for _ in range(2):
        stage.hear(0, kind="ended", code=1, why="oops")
    assert stage.director.end is None
    stage.hear(0, kind="ended", code=1, why="oops")
    assert stage.end == ("failed", 0, "oops")


def test_the_limit_of_restarts_holds_for_a_role_alone() -> None:
    stage = Stage(server_restart="role")
    stage.make_ready()
    for _ in range(20):
        stage.hear(0, kind="ended", code=1, why="oops")
        stage.hear(0, kind="ready")
    stage.hear(0, kind="ended", code=1, why="oops")
    assert stage.end[:2] == ("failed", 0)


def test_a_lost_task_ends_the_job() -> None:
    stage = Stage()
    stage.sent += stage.director.lost(1, stage.now)
    assert stage.end[:2] == ("failed", 1)
    assert stage.of("end") == [0, 2]


def test_everything_is_over_when_all_have_left_or_soon_after_the_longest_grace() -> None:
    for leaves in (True, False):
        stage = Stage()
        stage.make_ready()
        stage.hear(2, kind="ended", code=0)
        for rank in range(2 + leaves):
            stage.hear(rank, kind="left")
        assert stage.director.over == leaves
        stage.later(7 + LONGEST_SECONDS)
        assert stage.director.over
        assert stage.of("over") == [0, 1, 2]
    assert LONGEST_SECONDS < 5


def test_a_request_for_a_restart_ends_all_roles() -> None:
    stage = Stage()
    stage.make_ready()
    stage.hear(2, kind="ended", code=75, asked=True)
    assert stage.end[:2] == ("restart", 2)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["joined", "ready", "waiting", "ended", "left", "x"]))))
def test_no_order_of_messages_confuses_it(messages: list[tuple[int, str]]) -> None:
    stage = Stage(joined=False)
    for rank, kind in messages:
        stage.hear(rank, kind=kind, host="n", port=rank, meeting=1, code=rank)
        stage.later(0.1)
    started = stage.of("start")
    assert len(started) == len(set(started))
    assert len([message for _, message in stage.sent if message["kind"] == "over"]) in (0, 3)
