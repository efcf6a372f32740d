"""The configuration files of the daemons."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from clusterctl.launcher.sandbox import lifecycle
from clusterctl.launcher.sandbox.description import Sandbox, SandboxRequest
from clusterctl.shared.errors import UsageError
from clusterctl.shared.spec.values import GpuCount


def written(folder: Path, namespaces: bool = True, **request: int) -> Sandbox:
    asked = SandboxRequest(nodes=2, **request)
    sandbox = Sandbox(
        folder=str(folder),
        boot_id="",
        request=asked,
        namespaces=namespaces,
        network="10.1.2" if namespaces else "127.0.0",
        ports=(7001, 7002, 7003, 7004),
    )
    lifecycle.write_files(sandbox)
    return sandbox


def conf(folder: Path, name: str = "slurm.conf") -> dict[str, str]:
    lines = (folder / "etc" / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def test_slurm_conf_names_only_the_sandboxs_own_files(tmp_path: Path) -> None:
    written(tmp_path, kill_wait=7)
    found = conf(tmp_path)
    assert found["SlurmctldHost"].endswith("(10.1.2.254)")
    assert (found["SlurmctldPort"], found["KillWait"]) == ("7001", "7")
    assert found["AuthInfo"] == f"socket={tmp_path}/run/munge.socket,cred_expire=5"
    own = (
        "StateSaveLocation",
        "SlurmdSpoolDir",
        "SlurmctldPidFile",
        "SlurmdPidFile",
        "SlurmdLogFile",
        "PlugStackConfig",
    )
    assert all(found[key].startswith(f"{tmp_path}/") for key in own)
    nodes = [line for line in (tmp_path / "etc/slurm.conf").read_text().splitlines() if line.startswith("NodeName")]
    assert [line.split()[1:3] for line in nodes] == [
        ["NodeAddr=10.1.2.1", "Port=7003"],
        ["NodeAddr=10.1.2.2", "Port=7004"],
    ]


def test_without_namespaces_every_node_is_localhost_with_its_own_port(tmp_path: Path) -> None:
    written(tmp_path, namespaces=False)
    text = (tmp_path / "etc/slurm.conf").read_text()
    assert "SlurmctldHost=localhost\n" in text
    assert "NodeName=node2 NodeHostname=localhost NodeAddr=127.0.0.1 Port=7004" in text


def test_only_requested_features_are_configured(tmp_path: Path) -> None:
    plain, full = tmp_path / "plain", tmp_path / "full"
    plain.mkdir()
    full.mkdir()
    written(plain)
    written(full, accounting=True, cgroups=True)
    assert "AccountingStorageType" not in conf(plain)
    assert conf(full)["AccountingStoragePass"] == f"{full}/run/munge.socket"
    assert conf(full)["ProctrackType"] == "proctrack/cgroup"
    assert not {"slurmdbd.conf", "my.cnf", "cgroup.conf"} & {path.name for path in (plain / "etc").iterdir()}


def test_secrets_are_readable_only_by_their_owner(tmp_path: Path) -> None:
    written(tmp_path, accounting=True)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "etc").iterdir()} == {0o600}


@pytest.mark.parametrize(("gpus", "named"), [(2, ""), ("a100:2", " Type=a100")])
def test_the_machines_gpus_are_divided_among_the_nodes_if_there_are_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int | str, named: str
) -> None:
    request = SandboxRequest(nodes=2, gpus_per_node=GpuCount(gpus))
    monkeypatch.setattr(lifecycle, "machine_gpus", lambda: [Path(f"/dev/nvidia{n}") for n in range(5)])
    lifecycle.write_files(Sandbox(folder=str(tmp_path), boot_id="", request=request, ports=(7001, 7002, 7003, 7004)))
    assert (tmp_path / "etc/gres.conf").read_text().splitlines() == [
        "AutoDetect=off",
        f"NodeName=node1 Name=gpu{named} File=/dev/nvidia0",
        f"NodeName=node1 Name=gpu{named} File=/dev/nvidia1",
        f"NodeName=node2 Name=gpu{named} File=/dev/nvidia2",
        f"NodeName=node2 Name=gpu{named} File=/dev/nvidia3",
    ]
    nodes = [line for line in (tmp_path / "etc/slurm.conf").read_text().splitlines() if line.startswith("NodeName")]
    assert len(nodes) == 2
    assert all(line.endswith(f" Gres=gpu:{gpus}") for line in nodes)


def test_simulated_gpus_need_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(lifecycle.os, "mknod", refused)
    monkeypatch.setattr(lifecycle, "machine_gpus", list)
    with pytest.raises(UsageError, match="only root can"):
        written(tmp_path, gpus_per_node=GpuCount(1))


def test_nodes_do_not_use_dns(tmp_path: Path) -> None:
    host = tmp_path / "nsswitch.conf"
    host.write_text("passwd: files ldap\nhosts:  files dns\nservices: db\n")
    assert lifecycle._files_alone(host) == "passwd: files ldap\nservices: db\nhosts: files\n"
    assert lifecycle._files_alone(tmp_path / "missing") == "hosts: files\n"
