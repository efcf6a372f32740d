"""The documentation site: it has every page, command and key, and loads nothing from other hosts."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import click
import pytest
from support.screens import BROWSER, answer_of, opened

from clusterctl.launcher.api.settings import key_tables
from clusterctl.launcher.cli import clusterctl

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SITE = ROOT / ".venv-site" / "bin"
FOUND = "reference/keys/train.html"  # the expected first result of a search for fan_out
FIRST_RESULT = """new Promise(done => {
    setInterval(() => {
        const result = document.querySelector("a.md-search-result__link");
        if (result) done(result.href);
    }, 100);
    setTimeout(() => done("nothing found"), 60000);
})"""
# What a browser loads without a click.
_LOADED = {("link", "href"), *((tag, "src") for tag in ("script", "img", "iframe", "source", "video"))}


def test_the_navigation_lists_every_page_once() -> None:
    named = re.findall(r"^ *- (?:[^:\n]+: )?([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def commands(group: click.Command = clusterctl, above: str = "") -> Iterator[str]:
    """Every command, such as "image-build"."""
    for name in group.list_commands(click.Context(group)) if isinstance(group, click.Group) else ():
        command = group.get_command(click.Context(group), name)
        assert command
        yield f"{above}{name}"
        yield from commands(command, f"{above}{name}-")


def test_every_command_has_a_page_with_its_options_and_a_guide() -> None:
    pages = {page.stem: page.read_text() for page in (DOCS / "reference" / "commands").glob("*.md")}
    assert pages.keys() == {"index", *commands()}
    for name, page in pages.items():
        assert name == "index" or re.search(r"^## Guides\n\n- \[", page, re.MULTILINE), name
    assert "| <code>-N, --nodes N</code> |" in pages["submit"]


def test_every_key_has_a_heading_and_every_table_a_guide() -> None:
    pages = {page.stem: page.read_text() for page in (DOCS / "reference" / "keys").glob("*.md")}
    headings = {name: set(re.findall(r"^## `(.*)`$", text, re.MULTILINE)) for name, text in pages.items()}
    keys = {key.path for _, found in key_tables() for key in found}
    assert set().union(*headings.values()) == keys
    assert all(key.rpartition(".")[0] in (page, "") for page, found in headings.items() for key in found)
    assert [name for name, text in pages.items() if name != "index" and "uide" not in text] == []


def test_every_example_value_of_a_key_is_valid() -> None:
    import tomllib

    from support.json_schema import schema, violations

    tried = 0
    for page in sorted((DOCS / "reference" / "keys").glob("*.md")):
        for part in re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]:
            example = tomllib.loads(re.findall(r"```toml\n(.*?)```", part, re.DOTALL)[0])
            kind = "cluster" if page.stem in ("cluster", "emulator") else "job"
            workload = {"workload": "reddit"} if kind == "job" else {}
            if page.stem != "config":  # it has no schema
                assert violations(workload | example, schema(kind)) == [], example
                tried += 1
    assert tried > 100


def test_decisions_are_left_out_of_the_search_but_not_their_list() -> None:
    shown = runpy.run_path(str(DOCS / "search.py"))["on_page_markdown"]
    assert "docs/search.py" in (ROOT / "mkdocs.yml").read_text()

    def is_found(page: Path) -> bool:
        file = SimpleNamespace(src_uri=str(page.relative_to(DOCS)))
        one = SimpleNamespace(file=file, is_index=page.stem == "index", meta={})
        assert shown(page.read_text(), one, config=None, files=None) == page.read_text()
        return not one.meta.get("search", {}).get("exclude", False)

    hidden = {page for page in DOCS.rglob("*.md") if not is_found(page)}
    assert hidden == {*(DOCS / "decisions").rglob("*.md")} - {DOCS / "decisions" / "index.md"}
    assert len(hidden) > 10


@pytest.mark.long
def test_the_sites_index_for_searches_has_guides_and_no_decision(site: Path) -> None:
    for index in (found := [*site.rglob("search_index.js*")]):
        places = set(re.findall(r'"location":\s*"([^"#]+)', index.read_text()))
        assert {place for place in places if place.startswith("decisions/")} <= {"decisions/", "decisions/index.html"}
        assert any(place.startswith("guides/starting") for place in places)
    assert found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a network."""
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "https_proxy": "http://127.0.0.1:9"}
    words = [SITE / "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    alone = ["unshare", "--user", "--map-root-user", "--net"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode == 0:
        words = [*alone, *words]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


class Links(HTMLParser):
    """The addresses on a page: those loaded with it, and those of links."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.followed: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if (tag, name) in _LOADED and value:
                self.loaded.append(value)
            elif (tag, name) == ("a", "href") and value:
                self.followed.append(value)


@pytest.mark.long  # needs .venv-site
def test_pages_load_nothing_from_other_hosts_and_all_links_work(site: Path) -> None:
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]  # its links are resolved by the server
    assert len(pages) > 100
    for page in pages:
        links = Links(page)
        assert [address for address in links.loaded if urlsplit(address).netloc] == [], page
        for address in map(urlsplit, [*links.loaded, *links.followed]):
            assert address.scheme or (page.parent / unquote(address.path)).exists(), (page, address)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text()), sheet


@pytest.fixture(params=["file", "server"])
def address(site: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of the site: as a folder, and in a subfolder of a web server."""
    if request.param == "file":
        yield site.as_uri()
        return

    words = [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "--directory", site.parent, "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout
        port = re.search(r"port (\d+)", server.stdout.readline())
        assert port
        yield f"http://127.0.0.1:{port[1]}/{site.name}"
        server.kill()


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None, reason="no chromium; as root: tests/install.sh browser")
def test_pages_and_search_work_in_a_browser_without_external_requests(address: str) -> None:
    for page in ("index.html", "reference/keys/resources.html"):
        shown = opened(f"{address}/{page}")
        assert (shown.console, shown.calls) == ([], []), page
        assert "h1" in shown.tags
    assert str(answer_of(f"{address}/index.html?q=fan_out", FIRST_RESULT)).startswith(f"{address}/{FOUND}?")
