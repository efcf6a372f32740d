"""Downloads from a local server that drops connections, with or without support for ranges."""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from clusterctl.engine.data.data_sets import DataSet, download, fetch
from clusterctl.shared.errors import TaskError

CONTENT = bytes(range(256)) * 4000


class Site:
    """Sends `content`; drops the first connection after `breaks` bytes; `requested` are the ranges of the requests."""

    content, breaks, ranges = CONTENT, 0, True

    def __init__(self) -> None:
        self.requested: list[str | None] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                wanted = self.headers["Range"]
                site.requested.append(wanted)
                start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and site.ranges else 0
                if start >= len(site.content):
                    self.send_error(416)
                    return
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(site.content) - start))
                self.end_headers()
                stop, site.breaks = site.breaks or None, 0
                self.wfile.write(site.content[start : stop and start + stop])
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/set.zip"


@pytest.fixture
def site() -> Iterator[Site]:
    found = Site()
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_resumes_or_restarts(site: Site, tmp_path: Path, ranges: bool) -> None:
    site.breaks, site.ranges = 300_000, ranges
    target = tmp_path / "set.zip"
    with pytest.raises(TaskError, match="stopped after 300000 of 1024000 bytes|cannot download"):
        fetch(site.url, target)
    assert not target.exists()
    reported: list[tuple[int, int]] = []
    fetch(site.url, target, lambda done, total: reported.append((done, total)))
    assert target.read_bytes() == CONTENT
    assert site.requested == [None, "bytes=300000-"]
    assert reported[-1] == (len(CONTENT), len(CONTENT))
    assert list(tmp_path.iterdir()) == [target]


def test_a_connection_lost_after_the_last_byte_needs_no_new_download(site: Site, tmp_path: Path) -> None:
    (tmp_path / "set.zip.part").write_bytes(CONTENT)
    fetch(site.url, tmp_path / "set.zip")
    assert (tmp_path / "set.zip").read_bytes() == CONTENT


def test_without_network_the_hint_suggests_alternatives(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="cannot download") as caught:
        fetch("http://127.0.0.1:9/set.zip", tmp_path / "set.zip")
    assert "clusterctl data generate" in caught.value.hint


def archive(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as content:
        for name, text in files.items():
            content.writestr(f"folder/{name}", text)
    return buffer.getvalue()


def test_raw_files_are_unpacked_from_any_folder_of_the_archive(site: Site, tmp_path: Path) -> None:
    site.content = archive(a=b"first", b=b"second", c=b"other")
    download(DataSet(site.url, ("a", "b"), lambda _: None), "set", tmp_path)  # type: ignore[arg-type]
    assert {path.name: path.read_bytes() for path in (tmp_path / "raw").iterdir()} == {"a": b"first", "b": b"second"}
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_folders_are_unpacked_but_nothing_outside_the_root(site: Site, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as content:
        for name in ("raw/x.gz", "split/time/train.gz", "split/time/other.gz", "split/../train.gz", "README"):
            content.writestr(f"arxiv/{name}", name)
    site.content = buffer.getvalue()
    root = tmp_path / "arxiv"
    download(DataSet(site.url, ("raw/x.gz", "split/*/train.gz"), lambda _: None), "set", root)  # type: ignore[arg-type]
    files = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"arxiv/raw/x.gz": "raw/x.gz", "arxiv/split/time/train.gz": "split/time/train.gz"}


@pytest.mark.parametrize(
    "content",
    [b"<html>moved</html>", archive(b=b"second"), archive(a=b"x" * 99)[:60]],
    ids=["a page", "another archive", "half an archive"],
)
def test_a_wrong_archive_is_downloaded_again_next_time(site: Site, tmp_path: Path, content: bytes) -> None:
    found = DataSet(site.url, ("a",), lambda _: None)  # type: ignore[arg-type]
    site.content = content
    with pytest.raises(TaskError, match="is not the data set"):
        download(found, "set", tmp_path)
    site.content = archive(a=b"first")
    download(found, "set", tmp_path)
    assert (tmp_path / "raw" / "a").read_bytes() == b"first"
