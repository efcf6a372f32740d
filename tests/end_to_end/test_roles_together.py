"""What the programs of a job with roles get, and what the other commands make of such a run."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from support.guide import GUIDES, steps
from support.recorded import recorded
from support.scenario import BACK_ENDS, Stage, wait_until

import clusterctl

LOOK = """
import json, os, sys
found = {"argv": sys.argv[1:], "env": dict(os.environ), "cpus": len(os.sched_getaffinity(0))}
with open(f"{os.environ['CLUSTERCTL_ROLE']}-{os.environ['RANK']}.json", "w") as file:
    json.dump(found, file)
"""
SERVE = """
import http.server, os, sys
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{os.environ['CLUSTERCTL_ROLE']} {os.environ['RANK']}".encode())
    def log_message(self, *words):
        pass
server = http.server.ThreadingHTTPServer((os.environ["CLUSTERCTL_HOST"], int(sys.argv[1])), Answers)
print("listening on", sys.argv[1], flush=True)
server.serve_forever()
"""
WHOLE = r"""
code = "."
[resources]
time = "10m"
[env]
FOR_ALL = "all"

[[role]]
name = "prepare"
program = ["sh", "-c", "python look.py; sleep 1; touch index.done"]
ready = "file:index.done"
env = {{ ONLY_PREPARE = "of {{rank}} of {{ranks}} at {{host}}" }}

[[role]]
name = "server"
share = true
gpus_per_node = {one}
program = ["sh", "-c", "python look.py; exec python serve.py {{port}}"]
ready = "log:listening on"
needs = ["prepare"]

[[role]]
name = "trainer"
share = true
tasks_per_node = 2
gpus_per_node = {two}
program = ["python", "look.py", "{{server.addresses}}", '{{"json": {{"a": 1}}}}', "{{{{brace}}}}", "{{prepare.host}}"]
needs = ["server"]
ends = "job"
env = {{ ONLY_TRAINER = "{{local_rank}}" }}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def write(stage: Stage, text: str, **files: str) -> str:
    for name, content in files.items():
        (stage.folder / f"{name}.py").write_text(content)
    return stage.write_job("whole", text)


@pytest.mark.long
@pytest.mark.parametrize("back_end", BACK_ENDS, indirect=True)
def test_a_role_gets_its_own_variables_devices_and_all_addresses(stage: Stage) -> None:
    with_gpus = stage.cluster != "local"
    job = write(stage, WHOLE.format(one=int(with_gpus), two=2 * with_gpus), look=LOOK, serve=SERVE)
    run = stage.submit(job, "--wait")
    found: dict[str, dict[str, Any]] = {
        name: json.loads((run.work / f"{name}.json").read_text())
        for name in ("prepare-0", "server-0", "trainer-0", "trainer-1")
    }
    env = {name: one["env"] for name, one in found.items()}
    assert {one["FOR_ALL"] for one in env.values()} == {"all"}
    host = env["prepare-0"]["CLUSTERCTL_HOST"]
    assert env["prepare-0"]["ONLY_PREPARE"] == f"of 0 of 1 at {host}"
    assert [name for name, one in env.items() if "ONLY_PREPARE" in one] == ["prepare-0"]
    assert {name: one["ONLY_TRAINER"] for name, one in env.items() if "ONLY_TRAINER" in one} == {
        "trainer-0": "0",
        "trainer-1": "1",
    }
    server = f"{env['server-0']['CLUSTERCTL_HOST']}:{env['server-0']['CLUSTERCTL_PORT']}"
    for rank in (0, 1):
        one = found[f"trainer-{rank}"]
        assert one["argv"] == [server, '{"json": {"a": 1}}', "{brace}", host]
        assert (one["env"]["RANK"], one["env"]["WORLD_SIZE"], one["env"]["LOCAL_RANK"]) == (str(rank), "2", str(rank))
        assert one["env"]["CLUSTERCTL_ROLE_SERVER_ADDRESSES"] == server
    gpus = {name: one["CUDA_VISIBLE_DEVICES"] for name, one in env.items()}
    several = {"prepare-0": "", "server-0": "0", "trainer-0": "1,2", "trainer-1": "1,2"}
    assert gpus == (several if with_gpus else dict.fromkeys(gpus, ""))
    ports = {one[name] for one in env.values() for name in ("CLUSTERCTL_PORT", "MASTER_PORT")}
    assert len(ports) == 4 + 3  # a port for each rank, and one where the ranks of each role meet


WARNED = """
import time
from clusterctl import program
print("began", flush=True)
while not program.stop_requested():
    time.sleep(0.05)
print("warned", flush=True)
time.sleep({seconds})
"""
PAIR = """
code = "."
[resources]
time = "10m"
[[role]]
name = "server"
nodes = 2
program = ["python", "endless.py"]
[[role]]
name = "trainer"
share = true
program = ["python", "warned.py"]
ends = "job"
"""


@pytest.mark.long
@pytest.mark.parametrize("back_end", BACK_ENDS, indirect=True)
def test_the_warning_reaches_the_programs_of_all_roles(stage: Stage) -> None:
    job = write(stage, PAIR, endless=WARNED.format(seconds=600), warned=WARNED.format(seconds=2))
    run = stage.submit(job)
    ranks = (0, 1, 2)  # server r00, trainer r00, server r01
    wait_until(lambda: all(run.attempt(0).log(rank).is_file() and "began" in stage.log(run, rank) for rank in ranks))
    stage.slurm("scancel", "--signal=USR2", stage.job_id(run))
    stage.wait_for_state(run, "finished")
    assert all("warned" in stage.log(run, rank) for rank in ranks)


SERVED = """
code = "."
[notify]
command = ["sh", "-c", "cat >> '{messages}'"]
events = ["finished"]
[resources]
time = "10m"
[[role]]
name = "server"
nodes = 2
program = ["python", "serve.py", "{{port}}"]
ready = "tcp://{{host}}:{{port}}"
[[role]]
name = "trainer"
share = true
tasks_per_node = 2
program = ["sh", "-c", "echo training; until [ -e '{go}' ]; do sleep 0.1; done"]
needs = ["server"]
ends = "job"
"""


@pytest.mark.long
@pytest.mark.parametrize("back_end", BACK_ENDS, indirect=True)
def test_a_run_with_roles_is_one_run_for_every_command(stage: Stage) -> None:
    messages, go = stage.folder / "messages", stage.folder / "go"
    run = stage.submit(write(stage, SERVED.format(messages=messages, go=go), serve=SERVE))
    after = stage.submit(stage.write_job("after", 'workload = "command"\nargv = ["true"]\n'), "--after", run.id)
    wait_until(lambda: run.attempt(0).log(1).is_file() and "training" in stage.log(run, 1), 60, "the trainers")
    wait_until(lambda: any(event["event"] == "ready" for event in recorded(run.attempt(0), 3)), 30, "its record")
    assert not after.attempts()

    def do(command: str, *words: str) -> str:
        done = stage.call(command, run.id, "--cluster", stage.cluster, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    rows = [line.split() for line in do("status", "--roles").splitlines() if line.startswith(run.id)]
    assert [row[1:3] for row in rows[1:]] == [["server", "2"], ["trainer", "2"]]
    words = ["--role", "server", "--rank", "1", "--", "sh", "-c", "echo on $SLURMD_NODENAME"]
    assert "on node2" in do("attach", *words).splitlines()  # rank 1 of the job is on the other node
    port, here = stage.log(run, 3).split()[-1], free_port()  # the emulator's nodes have the ports of this machine
    tunnel = stage.begin("tunnel", run.id, f"server:{port}:{here}", "--rank", "1", "--cluster", stage.cluster)
    assert tunnel.stdout is not None
    address = tunnel.stdout.readline().strip()
    assert urllib.request.urlopen(f"http://{address}/").read() == b"server 1"
    tunnel.terminate()
    go.touch()
    stage.wait_for_state(run, "finished")
    stage.wait_for_state(after, "finished")

    assert do("logs", "--role", "server", "--rank", "1", "--stdout") == stage.log(run, 3)
    labelled = do("logs", "--no-collapse", "--role", "trainer").splitlines()
    labels = {" ".join(line.split()[:2]) for line in labelled if line.endswith(" training")}
    assert labels == {"trainer r00", "trainer r01"}
    assert do("why").splitlines()[0] == f"{run.id} finished"
    page = stage.folder / "report.html"
    do("report", "--output", str(page))
    assert "server r01" in page.read_text()
    wait_until(lambda: messages.is_file() and run.id in messages.read_text(), 30, "the notification")
    of_python = clusterctl.Run(run.path)
    assert [str(line) for line in of_python.logs(role="trainer", stream="out")] == ["training"] * 2


# The same as a batch script, as docs/guides/roles.md has it.

GUIDE = (GUIDES / "roles.md").read_text()
BLOCKS = steps(GUIDE)
SCRIPT = next(block for language, block in BLOCKS if language == "sh")
FILES = {match[1]: block for _, block in BLOCKS if (match := re.match(r"# (\S+\.(?:py|toml))\n", block))}


def test_the_guide_counts_the_lines_of_the_job_file_and_of_the_script() -> None:
    lines = [len([line for line in text.splitlines()[1:] if line.strip()]) for text in (FILES["three.toml"], SCRIPT)]
    counted = re.search(r"The job file above has (\d+) lines, without blank ones. The script below has (\d+) ", GUIDE)
    assert counted
    assert lines == [int(counted[1]), int(counted[2]) - 1]  # the script's first line counts, the file's name does not


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["sandbox"], indirect=True)
def test_the_script_of_the_guide_does_the_same(stage: Stage) -> None:
    for name in ("serve.py", "train.py"):
        (stage.folder / name).write_text(FILES[name])
    script = stage.folder / "three.sh"
    script.write_text(SCRIPT)
    environment = stage.environment | {"PATH": f"{Path(sys.executable).parent}:{stage.environment['PATH']}"}
    words = ["sbatch", "--wait", "--output=three.out", str(script)]
    done = subprocess.run(words, cwd=stage.folder, env=environment, capture_output=True, text=True, timeout=300)
    shown = (stage.folder / "three.out").read_text()
    assert done.returncode == 0, shown + done.stderr
    assert "trained with 2 features of each of 2 servers" in shown
