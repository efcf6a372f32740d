from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.engine.data import taobao
from clusterctl.engine.data.taobao import RAW_FILE, raw_identity, read_events
from clusterctl.shared.errors import TaskError

LINES = """\
7,100,1,pv,1511539200
7,100,1,pv,1511539200
7,100,1,buy,1511539200
7,100,1,pv,1511539201
5,300,2,cart,1512316799
5,300,2,cart,1512316800
9,200,1,fav,1511539199
"""


def data_set(root: Path, text: str | bytes) -> Path:
    raw = root / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    (raw / RAW_FILE).write_bytes(text.encode() if isinstance(text, str) else text)
    return root


@pytest.mark.parametrize("text", [LINES, LINES.rstrip("\n"), LINES.replace("\n", "\r\n")])
@pytest.mark.parametrize("block", [16, 1 << 20])
def test_events_of_the_nine_days_count_once_and_ids_are_numbered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, block: int
) -> None:
    monkeypatch.setattr(taobao, "_BYTES_AT_ONCE", block)
    events = read_events(data_set(tmp_path, text))
    assert (events.num_users, events.num_items) == (
        2,
        2,
    )  # 9 and 200 only have early events, which PyG's class drops, too
    assert list(zip(events.users.tolist(), events.items.tolist(), strict=True)) == [(0, 1), (1, 0), (1, 0), (1, 0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("7,100,1,stare,1511539200\n", "not user,item,category"),
        ("7,100,1,pv\n", "not user,item,category"),
        ("7,100,1,pv,1511539200,3\n", "5 columns"),
        (b"\x00\xff\n", "not user,item,category"),
        ("", "need at least one array"),
        ("7,100,1,pv,12\n", "no events in the nine days"),
    ],
)
def test_an_invalid_file_is_a_user_error(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        read_events(data_set(tmp_path, text))


def test_the_identity_changes_with_the_file_and_a_missing_one_gives_a_hint(tmp_path: Path) -> None:
    root = data_set(tmp_path / "data", LINES)
    before = raw_identity(str(root))
    assert raw_identity(f"{root}/../data") == before
    os.utime(root / "raw" / RAW_FILE, (1, 1))
    assert raw_identity(str(root)) != before
    for missing in (None, str(tmp_path / "none")):
        with pytest.raises(TaskError) as caught:
            raw_identity(missing)
        assert "clusterctl data generate taobao" in caught.value.hint
