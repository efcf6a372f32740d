"""/etc/clusterctl/cluster.toml: what root sets for every Slurm cluster of a machine, below what users write."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.launcher.api.settings import places
from clusterctl.launcher.config import clusters
from clusterctl.launcher.config.clusters import load_cluster
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.spec import Cluster

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the file must be root's")
Site = Callable[[str], Path]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Writes the site's file, here in a folder of the test."""
    path = tmp_path / "etc" / "cluster.toml"

    def write(text: str) -> Path:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)
        monkeypatch.setattr(clusters, "SITE_FILE", path)
        return path

    monkeypatch.chdir(tmp_path)
    return write


def loaded(text: str) -> Cluster:
    Path("mine.toml").write_text(text)
    return load_cluster("./mine.toml")


DEFAULTS = (
    'partition = "gpu"\naccount = "site"\npolling_floor = "30s"\n[env]\nHTTPS_PROXY = "http://proxy"\nA = "site"\n'
)


def test_users_files_win_key_by_key_and_the_rest_comes_from_the_site(site: Site) -> None:
    site(DEFAULTS)
    found = loaded('partition = "debug"\n[env]\nA = "mine"\n')
    assert (found.name, found.partition, found.account) == ("mine", "debug", "site")
    assert float(found.polling_floor) == 30
    assert dict(found.env) == {"HTTPS_PROXY": "http://proxy", "A": "mine"}


@pytest.mark.parametrize("text", ['kind = "emulator"\n', 'kind = "sandbox"\n', 'host = "login.site.edu"\n'])
def test_clusters_that_this_machines_slurm_does_not_run_have_no_such_defaults(site: Site, text: str) -> None:
    site(DEFAULTS)
    assert loaded(text).account is None


def test_without_the_file_nothing_changes_and_with_it_config_list_shows_it(site: Site) -> None:
    assert loaded('partition = "debug"\n').account is None
    assert "site" not in {kind for kind, _, _ in places()}
    path = site(DEFAULTS)
    assert ("site", "", path) in places()


@pytest.mark.parametrize(
    "damage", ["file of another user", "folder of another user", "writable file", "writable folder"]
)
def test_a_file_that_others_can_change_is_refused_by_name(site: Site, damage: str) -> None:
    path = site(DEFAULTS)
    target = path if "file" in damage else path.parent
    if "another" in damage:
        os.chown(target, 4242, -1)
    else:
        target.chmod(0o666 if target == path else 0o777)
    with pytest.raises(ConfigError, match="others than root can change it") as refused:
        loaded("")
    assert str(target) in refused.value.message
    assert str(target) in refused.value.hint


@pytest.mark.parametrize("key", ['host = "evil"', 'kind = "emulator"', 'name = "x"', 'remote_python = "/x"'])
def test_what_only_a_user_can_know_is_refused(site: Site, key: str) -> None:
    site(f"{key}\n")
    with pytest.raises(ConfigError, match=r"etc/cluster\.toml:1: \w+: not for all clusters"):
        loaded("")


def test_a_mistake_in_it_is_reported_with_its_line(site: Site) -> None:
    site('partition = "gpu"\npartitoin = "x"\n')
    with pytest.raises(ConfigError, match=r"etc/cluster\.toml:2: .*partitoin"):
        loaded("")
