from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.ranks import claim
from torch.torch_version import TorchVersion

from clusterctl.engine.task.rendezvous import meet
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.place import Place


@pytest.mark.parametrize(
    ("version", "libuv"), [("2.6.0a0+df5bbc0.nv24.11", False), (torch.__version__, torch.__version__ >= "2.8")]
)
def test_ranks_meet_with_and_without_libuv(
    version: str, libuv: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    attempt = RunDir(tmp_path / "run").attempt(0)
    claim(attempt)
    server, client = (meet(Place(rank=rank, world_size=2), attempt)[0] for rank in range(2))
    assert server.libuvBackend == libuv
    server.set("who", "rank 0")
    assert client.get("who") == b"rank 0"
