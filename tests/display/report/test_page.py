"""The page of a report, as HTML and in a browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest
from support.made_runs import busy_files
from support.mistake import check_plain
from support.screens import BROWSER, Page, answer_of, opened

from clusterctl.launcher.display.report.page import examine, link, page
from clusterctl.launcher.display.report.several import page as several_page
from clusterctl.launcher.observe.comparison import examine_runs

from .conftest import NOW, Silent

HOSTILE = "\x1b[31m</style></title><script>alert(1)</script><img src=http://127.0.0.1:9/x onerror=alert(1)>\u202e\x00"
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium; as root: tests/install.sh browser")


def hostile_files() -> dict[str, object]:
    host = {"attempt": 0, "job_id": "1", "nodes": HOSTILE, "start": 1e6, "exit_code": 1, "end": 2e6}
    gpus = [{"index": 0, "name": HOSTILE, "utilisation": 1}]
    return {
        "attempts/0/host.json": host,
        "attempts/0/events/rank_00000.jsonl": [
            {"time": 1e6, "event": "began", "host": HOSTILE},
            {"time": 1e6 + 1, "event": "exception", "type": HOSTILE, "message": HOSTILE},
        ],
        "attempts/0/metrics.jsonl": [{"time": 1e6 + step, "step": step, HOSTILE: step} for step in range(9)],
        "attempts/0/telemetry/a<b>c.jsonl": [{"time": 1e6, "cpu": 1, "gpus": gpus, "ranks": {"0": {"step": 1}}}],
        "attempts/0/logs/rank_00000.out": HOSTILE,
    }


def test_the_page_has_every_section(examined) -> None:
    text = page(examined())
    titles = re.findall("<h2>(.*?)</h2>", text)
    assert titles == [
        *("Why", "Curves", "Efficiency", "Phases", "Nodes and ranks"),
        *("Environment", "Configuration", "Logs"),
    ]
    assert "55% of a step is spent waiting for input" in text
    assert "1 restart cost" in text
    assert "<td>1</td><td>through the queue</td><td>31s</td><td>1m02s</td><td>1m21s</td><td>50</td>" in text
    assert "RuntimeError: out of memory" in text
    assert text.count("<svg") > 10
    assert len(text) < 500_000


def test_a_queued_run_has_a_report_too(examined) -> None:
    text = page(examined(files={}))
    assert "No attempt has started." in text
    assert "not enough telemetry" in text


def test_keys_have_their_origin_and_defaults_are_folded_away(examined, fabricate) -> None:
    post_mortem = examined()
    record = json.loads(post_mortem.status.record.run.run_json.read_text())
    post_mortem.record.clear()
    post_mortem.record.update(record | {"origins": {"train.lr": "jobs/cora.toml:7"}, "argv": ["submit", "a b"]})
    text = page(post_mortem)
    shown, folded = text[text.index("<h2>Configuration") : text.index("<h2>Logs")].split("<details>")
    assert "jobs/cora.toml:7" in shown
    assert "train.epochs" in folded
    assert '<td>checkpoint.every</td><td class="value">10m</td>' in folded
    assert "clusterctl submit a b" in text


def test_links_lead_from_the_report_to_the_logs(examined, tmp_path: Path) -> None:
    post_mortem = examined()
    for href in re.findall('href="(.*?)"', page(post_mortem)):
        assert (post_mortem.folder / unquote(href)).exists()
    assert link(Path("/runs/a b/é#1?.out"), Path("/runs/x")) == "../a%20b/%C3%A9%231%3F.out"
    assert link(Path("/runs/x/javascript:y"), Path("/runs/x")) == "./javascript%3Ay"


def test_the_last_lines_and_the_first_error_are_in_the_page_itself(examined) -> None:
    files = {
        **hostile_files(),
        "attempts/0/logs/rank_00001.out": "".join(f"step {step}\n" for step in range(500)),
    }
    text = page(examined(files=files))
    assert "step 499" in text
    assert "step 1\n" not in text
    assert "The first error, rank 0, attempt 0:" in text
    long = page(examined(files={"attempts/0/logs/rank_00000.out": "x" * 10**6}))
    assert len(long) < 10**5


def test_a_page_that_is_shown_elsewhere_has_excerpts_and_no_links(examined) -> None:
    elsewhere = page(replace(examined(), folder=None))
    assert "href" not in elsewhere
    assert "epoch 30/40" in elsewhere


def test_many_ranks_are_folded_except_those_that_slow_the_others_down(examined) -> None:
    text = page(examined())
    machines = text[text.index("<h2>Nodes and ranks") : text.index("<h2>Environment")]
    open_, folded = machines.split("<details>")
    assert open_.count('<tr class="bad">') == 1
    assert "<summary>32 ranks</summary>" in folded
    assert folded.count("<tr") == 33


def test_files_written_by_the_program_are_listed_with_their_sizes(examined) -> None:
    files = {"code/project/train.py": "", "work/out/a&<b>.csv": "x" * 2048, "work/runs/events": ""}
    files |= {f"work/more/{number:03}": "" for number in range(99)}
    post_mortem = examined(files=files)
    text = page(post_mortem)
    section = text[text.index("<h2>Files</h2>") :]
    assert '>out/a&amp;&lt;b&gt;.csv</a></td><td class="number">2.0K</td>' in section
    assert "more/098" in section
    assert "1 more are not shown." in section
    assert all((post_mortem.folder / unquote(href)).exists() for href in re.findall('href="(.*?)"', section))


def test_output_of_a_program_is_shown_as_plain_text(examined) -> None:
    post_mortem = examined(files=hostile_files())
    text = page(post_mortem)
    check_plain(text)
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;alert(1)" in text


@needs_browser
def test_a_browser_shows_it_without_errors_or_network_requests(examined, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(examined()))
    shown: Page = opened(file)
    assert shown.console == []
    assert shown.calls == []
    assert "script" not in shown.tags
    assert shown.text("h1") == "cora-20260102-030405-00a1"
    assert shown.tags.count("svg") > 10
    assert "out of memory" in shown.text("td")


@needs_browser
def test_hostile_text_is_not_executed_in_a_browser(examined, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(examined(files=hostile_files())))
    shown = opened(file)
    assert shown.console == []
    assert shown.calls == []
    assert not {"script", "img"} & set(shown.tags)
    assert "<script>alert(1)</script>" in shown.text("td")


@needs_browser
def test_the_browser_detects_errors_and_network_requests(tmp_path: Path) -> None:
    """Shows that the two tests above can fail."""
    file = tmp_path / "bad.html"
    file.write_text("<img src='http://192.0.2.1/x.png'><script>console.error('complaint')</script>")
    shown = opened(file)
    assert any("192.0.2.1/x.png" in call for call in shown.calls)
    assert any("complaint" in line for line in shown.console)


def test_a_page_needs_no_log_of_rank_0(examined) -> None:
    post_mortem = examined(files={"attempts/0/logs/rank_00007.out": "alive\n"})
    run = post_mortem.status.record.run
    record = json.loads(run.run_json.read_text())
    record["job"]["resources"] |= {"nodes": 9, "tasks_per_node": 8}
    run.run_json.write_text(json.dumps(record))
    assert "<h2>Phases</h2>" in page(examine(run, None, slurm_of=lambda cluster: Silent(), clock=lambda: NOW))


_NARROW = """
(async () => {
  const broken = [];
  for (const html of PAGES) {
    const frame = document.createElement("iframe");
    frame.style = "width: 390px; height: 800px; border: 0";
    const loaded = new Promise((done) => (frame.onload = done));
    frame.srcdoc = html;
    document.body.append(frame);
    await loaded;
    const page = frame.contentDocument;
    if (page.documentElement.scrollWidth > 390) {
      const wide = [...page.querySelectorAll("body *")].filter((one) => one.scrollWidth > one.clientWidth + 1);
      broken.push("wider than the window: " + wide.map((one) => one.tagName + " " + one.className));
    }
    const texts = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const node = texts.currentNode;
      if (node.parentElement.closest("h1, pre, code, td.value, script, style, .differences th, a, li")) continue;
      for (const word of node.data.matchAll(/[A-Za-z]+/g)) {
        const range = page.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map((one) => Math.round(one.top))).size > 1) broken.push(word[0]);
      }
    }
  }
  return broken;
})()
"""


@needs_browser
def test_on_a_phone_no_word_is_cut_and_no_page_is_wider_than_the_window(fabricate, tmp_path: Path) -> None:
    """Except in names, paths, values and code, which are as long as users make them."""
    first, second = (fabricate(f"cora-20260102-03040{place}-00a1", busy_files()) for place in range(2))
    changed = json.loads(second.run_json.read_text())
    changed["job"]["train"] |= {"hidden_channels": 512}
    second.run_json.write_text(json.dumps(changed))
    one = page(examine(first, tmp_path, slurm_of=lambda cluster: Silent(), clock=lambda: NOW))
    two = several_page(examine_runs([first, second], slurm_of=lambda cluster: Silent(), clock=lambda: NOW))
    assert "train.<wbr>hidden_<wbr>channels" in two
    assert answer_of("about:blank", _NARROW.replace("PAGES", json.dumps([one, two]))) == []
