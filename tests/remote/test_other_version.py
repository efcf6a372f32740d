"""The other machine may have a later or earlier clusterctl, for example if its package was replaced by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from clusterctl.launcher.api.remote.cluster import RemoteCluster
from clusterctl.launcher.api.remote.operations import carried_out, understood
from clusterctl.shared.errors import UsageError
from clusterctl.shared.spec import Cluster

FAR = RemoteCluster("far", Path("far.toml"), Cluster(name="far", host="login.example.org"))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("find:renamed", {}),  # an operation
        ("no.such.room:names", {}),
        ("find:names", {"cluster": "far", "an_argument": "s0"}),
        ("find:as_run", {}),  # a function that is no operation any more
        ("..shared.errors:ConfigError", {}),
        ("find:names", ["far"]),
    ],
)
def test_what_the_other_version_does_not_know_is_answered_with_a_hint(name: str, arguments: object) -> None:
    with pytest.raises(UsageError, match=re.escape(f"no such operation: {name}")) as refused:
        understood(FAR, "find:names", carried_out(name, json.dumps(arguments)))
    assert refused.value.hint == "do both machines have the same version of clusterctl?"
