"""The page about several runs, as HTML and in a browser."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.made_runs import START, ended, falling, write_sweep
from support.mistake import check_plain
from support.screens import BROWSER, opened

from clusterctl.launcher.display.report.several import page, scale_over
from clusterctl.launcher.observe.comparison import Several, examine_runs, examine_sweep
from clusterctl.shared.errors import ConfigError, SlurmError, UsageError
from clusterctl.shared.record.layout import RunDir, SweepDir

SWEEP = "cora-20260102-030405-00a1"
HOSTILE = "\x1b[31m</style></title></script><script>alert(1)</script><img src=http://127.0.0.1:9/x>\u202e\x00"
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium; as root: tests/install.sh browser")


class Silent:
    """A Slurm that does not answer: a report needs none."""

    def snapshot(self) -> None:
        raise SlurmError("no answer")

    def accounted(self, job_ids: object) -> None:
        raise SlurmError("no answer")


@pytest.fixture
def sweep(fabricate, tmp_path: Path) -> Callable[..., SweepDir]:
    def make(runs: Iterable[tuple[Mapping[str, object], dict[str, object]]]) -> SweepDir:
        rows = []
        for place, (settings, files) in enumerate(runs):
            fabricate(f"{SWEEP}.{place}", files)
            rows.append(settings)
        return write_sweep(tmp_path / "runs", SWEEP, rows)

    return make


def examined(made: SweepDir, metric: str | None = None) -> Several:
    return examine_sweep(made, metric, slurm_of=lambda cluster: Silent(), clock=lambda: START + 100)


def grid() -> list[tuple[dict[str, object], dict[str, object]]]:
    rates, seeds = ("1e-3", "1e-2", "1e-1"), (0, 1)
    runs = [({"train.lr": rate, "train.seed": seed}, 0.1 * i + seed) for i, rate in enumerate(rates) for seed in seeds]
    return [(settings, ended(falling(last, val_accuracy=1 - last / 4))) for settings, last in runs]


def cells(text: str) -> list[list[str]]:
    """The rows of the table at the end."""
    body = text[text.rindex("<tbody>") : text.rindex("</tbody>")]
    return [re.findall("<td[^>]*>(.*?)</td>", row) for row in body.split("<tr>")[1:]]


def test_the_page_has_every_section_and_names_the_best_run_with_its_settings(sweep) -> None:
    text = page(examined(sweep(grid())))
    assert re.findall("<h2>(.*?)</h2>", text) == ["Best run: 0", "Settings", "Curves", "Runs"]
    assert "<dt>highest val accuracy</dt><dd>1.0000</dd>" in text
    assert "<dt>train.lr</dt><dd>1e-3</dd>" in text
    assert f"clusterctl report {SWEEP}.0" in text
    assert '<span class="state good">6 finished</span>' in text


def test_the_table_is_sorted_by_the_metric_and_marked_as_such(sweep) -> None:
    made = sweep(grid())
    text = page(examined(made))
    assert [row[0] for row in cells(text)] == ["0", "2", "4", "1", "3", "5"]
    assert '<th scope="col" class="number" aria-sort="descending">val accuracy</th>' in text
    assert cells(text)[0] == ["0", "finished", "1.0000", "1e-3", "0", "0.0000", "1m30s"]
    text = page(examined(made, "loss"))
    assert '<th scope="col" class="number" aria-sort="ascending">loss</th>' in text
    with pytest.raises(UsageError, match="no value of los in these runs") as error:
        examined(made, "los")
    assert error.value.hint == "did you mean loss?"


def test_runs_without_the_metric_come_last_and_unreadable_ones_are_named(sweep) -> None:
    runs = [*grid()[:2], ({"train.lr": "9"}, {}), ({"train.lr": "8"}, ended(falling(math.nan), 1)), *grid()[2:3]]
    made = sweep(runs)
    made.run(4).run_json.write_text("{")
    found = examined(made)
    assert [member.name for member in found.members] == ["0", "1", "2", "3"]
    text = page(found)
    assert f"cannot read {made.run(4).run_json}" in text
    assert cells(text)[-1][:2] == ["3", "failed"]
    assert 'data-value=""' in text
    for place in range(4):
        made.run(place).run_json.write_text("{")
    with pytest.raises(ConfigError, match="cannot read"):
        examined(made)


def test_two_settings_on_a_grid_are_a_heat_map_and_others_parallel_axes(sweep, tmp_path: Path) -> None:
    text = page(examined(sweep(grid())))
    assert text[: text.index('class="scale"')].count('class="cell') == 6
    assert '<rect x="151" y="25"' in text
    (tmp_path / "runs" / ".sweeps").rename(tmp_path / "other")
    text = page(examined(sweep(grid()[:5])))
    assert 'class="cell"' not in text[: text.index('class="scale"')]
    assert len(re.findall('<polyline points="[^"]*" class="line[^"]*" stroke-opacity', text)) == 5


def test_only_the_best_are_drawn_and_each_line_has_its_name(sweep) -> None:
    made = sweep([({"train.seed": seed}, ended(falling(seed / 40))) for seed in range(40)])
    found = examined(made)
    assert sum(member.history is not None for member in found.members) == 32
    text = page(found)
    assert "Showing the best 32 of 40 runs." in text
    assert "<title>31 (seed=31), loss 0.7750</title>" in text
    assert "32 (seed=32)" not in text
    assert len(set(re.findall(r"<title>(\d+) \(seed=", text))) == 32


def test_runs_that_were_restarted_are_drawn_once(sweep) -> None:
    again = {"attempts/1/host.json": {"attempt": 1, "job_id": "7", "start": START + 95}}
    files = ended(falling(0.5)) | again | {"attempts/1/metrics.jsonl": falling(0.1)[10:]}
    del files["finished.json"]
    text = page(examined(sweep([({"a": 1}, files), ({"a": 2}, ended(falling(0.3)))])))
    places = re.findall(r'<title>0 \(a=1\), loss 0.1000</title><polyline points="([^"]*)"', text)[0]
    xs = [float(place.split(",")[0]) for place in places.split()]
    assert xs == sorted(set(xs))
    assert len(xs) == 40


def test_unrelated_runs_are_shown_with_the_settings_that_differ(fabricate) -> None:
    one, two = fabricate("cora-20260102-030405-00a1", ended(falling(0.5))), fabricate("slow-20260102-030405-00a2", {})
    record = json.loads(two.run_json.read_text())
    record["job"]["train"]["lr"] = 0.5
    two.run_json.write_text(json.dumps(record))
    found = examine_runs([two, one], slurm_of=lambda cluster: Silent(), clock=lambda: START + 100)
    assert set(found.keys) == {"name", "train.lr"}
    text = page(found)
    assert "<h1>2 runs of slow, cora</h1>" in text
    assert re.findall('<th scope="col">.*?<span>(.*?)</span>', text) == [two.id, one.id]  # as named
    assert '<th scope="row">train.<wbr>lr</th><td class="value">0.5</td><td class="value">0.001</td>' in text
    assert "<svg" in text


def test_runs_without_metrics_have_a_page_too(sweep) -> None:
    text = page(examined(sweep([({"a": 1}, {}), ({"a": 2}, {})])))
    assert "The runs are not ranked" in text
    assert "<svg" not in text


def test_a_metric_that_is_nan_everywhere_ranks_nothing(sweep) -> None:
    with pytest.raises(UsageError) as error:
        examined(sweep([({"a": 1}, ended(falling(math.nan)))]), "loss")
    assert error.value.hint == "one of step"


def hostile() -> list[tuple[dict[str, object], dict[str, object]]]:
    return [
        ({HOSTILE: f"{HOSTILE}{place}", "b": place % 2}, ended(falling(place, **{HOSTILE: place})))
        for place in range(5)
    ]


@pytest.mark.parametrize("metric", [None, HOSTILE])
def test_hostile_text_is_escaped(sweep, metric: str | None) -> None:
    text = page(examined(sweep(hostile()), metric))
    check_plain(text)
    assert text.count("<script") == 1
    assert "<img" not in text
    for svg in re.findall("<svg.*?</svg>", text):
        ElementTree.fromstring(svg)


@pytest.mark.long
def test_a_thousand_runs_are_a_page_of_a_few_megabytes(sweep) -> None:
    chance = random.Random(1)
    runs = []
    for place in range(1000):
        settings = {f"train.key{key}": f"{10 ** chance.uniform(-5, 0):.6g}" for key in range(4)} | {"train.seed": place}
        runs.append((settings, ended(falling(chance.random(), val_accuracy=chance.random(), other=chance.random()))))
    made = sweep(runs)
    begun = time.process_time()
    text = page(examined(made))
    assert time.process_time() - begun < 10
    assert len(text) < 5_000_000


@needs_browser
def test_a_browser_sorts_the_table_and_the_policy_allows_no_other_script(sweep, tmp_path: Path) -> None:
    text = page(examined(sweep(grid())))
    file = tmp_path / "report.html"
    file.write_text(text)
    shown = opened(file)
    assert (shown.console, shown.calls) == ([], [])
    assert shown.tags.count("button") == len(re.findall('<th scope="col"', text))
    press = "<script>for (const i of [5, 5]) document.querySelectorAll('th button')[i].click()</script></body>"
    file.write_text(text.replace("</body>", press))
    assert any("Content Security Policy" in line for line in opened(file).console)  # no other script runs
    file.write_text(re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).replace("</body>", press))
    assert [row[0] for row in cells(opened(file).dom)] == ["5", "3", "1", "4", "2", "0"]


@needs_browser
def test_hostile_text_is_not_executed_in_a_browser(sweep, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(examined(sweep(hostile()))))
    shown = opened(file)
    assert (shown.console, shown.calls) == ([], [])
    assert shown.tags.count("script") == 1
    assert "img" not in shown.tags
    assert "<script>alert(1)</script>" in shown.text("td")


def changed(run: RunDir, **train: object) -> RunDir:
    record = json.loads(run.run_json.read_text())
    record["job"]["train"] |= train
    run.run_json.write_text(json.dumps(record))
    return run


def going(last: float) -> dict[str, object]:
    """The files of a run that has not ended."""
    files = ended(falling(last))
    del files["finished.json"]
    return files | {"attempts/0/host.json": {"attempt": 0, "job_id": "7", "nodes": "n1", "start": START}}


def several_of(runs: list[RunDir]) -> str:
    return page(examine_runs(runs, slurm_of=lambda cluster: Silent(), clock=lambda: START + 100))


def test_a_page_about_two_runs_begins_with_what_differs_and_calls_only_finished_runs_better(fabricate) -> None:
    first = fabricate("cora-20260102-030405-00a1", ended(falling(0.5)))
    second = changed(fabricate("cora-20260102-030405-00a2", ended(falling(0.25))), lr=0.25)
    text = several_of([first, second])
    titles = re.findall("<h2>(.*?)</h2>", text)
    assert titles[0] == "What differs"
    assert not any(title.startswith(("Best", "Runs")) for title in titles)
    assert '<td class="value good">0.2500 (better)</td>' in text
    assert "No difference: versions, image." in text  # the code is gone, so nobody knows
    third = changed(fabricate("cora-20260102-030405-00a3", going(0.25)), lr=0.25)
    text = several_of([first, third])
    assert "(better)" not in text
    assert "No run is called the best" in text
    assert '<td class="state alive">' in text


@pytest.mark.parametrize("count", [3, 4, 5])
def test_more_than_four_runs_are_rows_of_a_table(fabricate, count: int) -> None:
    runs = [
        changed(fabricate(f"cora-20260102-030405-00a{place}", ended(falling(place))), lr=(place + 1) / 8)
        for place in range(count)
    ]
    titles = re.findall("<h2>(.*?)</h2>", several_of(runs))
    assert ("What differs" in titles, "Runs" in titles) == (count < 5, count == 5)


def test_an_unfinished_run_is_never_the_best_and_has_a_table_of_its_own(sweep) -> None:
    runs = [
        ({"a": 1}, ended(falling(0.5))),
        ({"a": 2}, going(0.1)),
        ({"a": 3}, ended(falling(0.01), 1)),
        ({"a": 4}, {}),
    ]
    found = examined(sweep(runs))
    assert (found.best.name, found.ahead.name) == ("0", "2")  # type: ignore[union-attr]
    text = page(found)
    assert "is ahead with 0.0100, but has not finished: failed" in text
    finished, others = text[text.index("<h2>Finished runs") :].split("<h2>Not finished")
    assert len(cells(finished + "</tbody>")) == 1
    assert [row[0] for row in cells(others)] == ["2", "1", "3"]
    assert 'class="line unfinished' in text
    assert "unfinished" in re.findall('<g class="([^"]*)"><title>1 ', text)[0]


def test_a_sweep_without_a_finished_run_has_a_best_one_so_far(sweep) -> None:
    text = page(examined(sweep([({"a": place}, going(place / 4)) for place in range(3)])))
    assert "<h2>Best so far: 0</h2>" in text
    assert "<h2>Runs</h2>" in text


def test_one_colour_is_the_stronger_the_better_and_a_diverged_run_does_not_stretch_the_scale(sweep) -> None:
    values = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1e6]
    scale = scale_over(examined(sweep([({"a": place}, ended(falling(value))) for place, value in enumerate(values)])))
    strengths = [scale.strength(value) for value in values]
    assert strengths == sorted(strengths, reverse=True)
    assert (strengths[0], strengths[-1], scale.beyond) == (1.0, strengths[-2], 1)
    steps = [one - two for one, two in itertools.pairwise(strengths[:6])]
    assert max(steps) - min(steps) < 1e-9  # equal steps of the value are equal steps of the colour


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5, 9], [-1e308, 1e308], [0, 0.0]])
def test_any_scores_have_a_scale(sweep, values: list[float]) -> None:
    found = examined(sweep([({"a": place}, ended(falling(value))) for place, value in enumerate(values)]))
    assert all(0 <= scale_over(found).strength(value) <= 1 for value in values)
    page(found)


def test_the_curve_of_a_diverged_run_does_not_hide_the_others(sweep) -> None:
    runs = [({"a": place}, ended(falling(0.1 * place))) for place in range(8)]
    text = page(examined(sweep([*runs, ({"a": 9}, ended(falling(1e9)))])))
    loss = text[text.index("<figcaption>loss") :]
    assert max(map(float, re.findall('class="axis end">([0-9.]+)<', loss[: loss.index("</svg>")]))) < 5
    assert "Values beyond an axis are drawn at its edge." in text


def test_what_does_not_change_is_a_number(sweep) -> None:
    rows = [{**one, "lr": 0.01} for one in falling(0.5)]
    text = page(examined(sweep([({"a": place}, ended(rows)) for place in range(2)])))
    assert "<span>lr <strong>0.0100</strong></span>" in text
    assert "<figcaption>lr" not in text
