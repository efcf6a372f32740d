"""Names and values that try to reach a shell, a terminal, an option or another path."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from support.mistake import CONFIG, NOT_FOUND, Desk, Mistake, check_message, check_plain, rows

from clusterctl.shared.record.files import read_json

HOSTILE = (
    "$(touch hacked)",
    "`touch hacked`",
    "; touch hacked",
    "a' ; touch hacked ; '",
    '"; touch hacked; "',
    "&& touch hacked",
    "| touch hacked",
    "> hacked",
    "${IFS}touch${IFS}hacked",
    "!touch hacked",
    "a\ntouch hacked\n",
    "a\n#SBATCH --uid=0\n",
    "\\",
    "--export=NONE",
    "-rf /",
    "*",
    "~root",
    "%j%t",
    "é\u202eexe",
    "\x1b]0;owned\x07\x1b[2J",
    "'" * 7,
    " # comment",
)
IDS = [ascii(value)[1:-1] for value in HOSTILE]
REFUSED = {value for value in HOSTILE if {"\n", "\x1b", "\\"} & set(value)}


def check_script(desk: Desk, script: str) -> None:
    """bash can parse it, and all #SBATCH lines at its top are from clusterctl."""
    path = desk.folder / "script.sh"
    path.write_text(script)
    subprocess.run(["bash", "-n", path], check=True)
    head = script.partition("\n# Rendered")[0]
    assert all(line.startswith(("#!/bin/bash", "#SBATCH --")) for line in head.splitlines())
    assert "#SBATCH --uid" not in head


def output_of_bash(desk: Desk, program: str) -> str:
    done = subprocess.run(["bash", "-c", program], capture_output=True, check=True, cwd=desk.project)
    assert not (desk.project / "hacked").exists()
    return done.stdout.decode()


@pytest.mark.parametrize("value", HOSTILE, ids=IDS)
def test_a_variables_value_stays_a_value(desk: Desk, value: str) -> None:
    code, script, err = desk.type(["submit", "cora", "--dry-run", "--set", f"env.VALUE={json.dumps(value)}"])
    assert (code, err) == (0, "")
    check_script(desk, script)
    exports = script[script.index("cctl_exports=(") :].partition("\n)\n")[0]
    assert output_of_bash(desk, f'{exports}\n)\nexport "${{cctl_exports[@]}}"\nprintf %s "$VALUE"') == value


@pytest.mark.parametrize("value", HOSTILE, ids=IDS)
@pytest.mark.parametrize("key", ["partition", "comment", "nodelist"])
def test_an_options_value_stays_in_its_option(desk: Desk, key: str, value: str) -> None:
    setting = f"resources.{key}={json.dumps(value)}"
    code, script, err = desk.type(["submit", "cora", "--dry-run", "--set", setting])
    if value in REFUSED:
        assert code == CONFIG
        check_message(err, f"resources.{key}: must be one line", "clusterctl config keys")
        return
    assert (code, err) == (0, "")
    check_script(desk, script)
    (line,) = (line for line in script.splitlines() if line.startswith(f"#SBATCH --{key}"))
    assert shlex.split(line) == ["#SBATCH", f"--{key}={value}"]


@rows(
    *(
        Mistake(
            what=f"{command} {ascii(name)[1:-1]}"[:70],
            typed=(command, name),
            code=NOT_FOUND,
            expected="no runs in",
            hint="status",
        )
        for command in ("status", "logs", "cancel", "release")
        for name in (
            "../../etc",
            "/etc/passwd",
            "*",
            "[a-z]*",
            "a\nb",
            "..",
            ".",
            "",
            "@first",
            "\x1b[2J",
            "a" * 5000,
            "\udcff",
            "-",
        )
    )
)
def test_a_strange_run_name(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)


@pytest.mark.parametrize("command", ["status", "logs", "cancel"])
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("../runs/cora-20260102-030405-00a1", "did you mean cora-20260102-030405-00a1?"),
        ("/", "clusterctl status"),
        ("*", "clusterctl status"),
        ("cora-2026*", "clusterctl status"),
        ("cora\n", "did you mean cora?"),
        ("CORA", "clusterctl status"),
        ("cora-20260102-030405-00a1/", "did you mean cora-20260102-030405-00a1?"),
        ("", "clusterctl status"),
    ],
)
def test_a_run_is_found_only_by_its_name(desk: Desk, command: str, name: str, hint: str) -> None:
    (desk.runs / "cora-20260102-030405-00a1").mkdir(parents=True)
    (desk.runs / "cora-20260102-030405-00a1" / "run.json").write_text("{}")
    code, out, err = desk.type([command, name])
    assert (code, out) == (NOT_FOUND, "")
    check_message(err, "no run named", hint)


@pytest.mark.parametrize(
    "folder", ["a b", "$HOME", "it's", 'say "x"', "`id`", "läufe", "-rf", "a;b", "*", "#x", "&", "(x)"]
)
def test_the_runs_folder_may_have_any_name_that_slurm_accepts(desk: Desk, folder: str) -> None:
    desk.set(CLUSTERCTL_RUNS=f"./{folder}")
    code, script, _ = desk.type("submit cora --dry-run")
    assert code == 0
    check_script(desk, script)
    (line,) = (line for line in script.splitlines() if line.startswith("cctl_run="))
    assert Path(output_of_bash(desk, f'{line}; printf %s "$cctl_run"')).parent == desk.project / folder


@pytest.mark.parametrize("value", HOSTILE, ids=IDS)
def test_a_programs_arguments_reach_no_shell_and_no_terminal(desk: Desk, value: str) -> None:
    words = json.dumps([value, "x"])
    code, out, err = desk.type(["config", "show", "command", "--set", f"argv={words}"])
    assert code == 0
    check_plain(out + err)
    code, script, _ = desk.type(["submit", "command", "--dry-run", "--set", f"argv={words}"])
    assert code == 0
    assert "hacked" not in script.replace(str(desk.folder), "")


def test_a_script_on_a_terminal_has_no_escape_codes(desk: Desk) -> None:
    words = ["submit", "cora", "--dry-run", "--set", "env.X=a\x1b[2Jb"]
    desk.patch.setattr("sys.stdout.isatty", lambda: True)
    code, out, _ = desk.type(words)
    assert code == 0
    check_plain(out)
    assert "  'X=ab'\n" in out


def test_file_names_on_a_terminal_have_no_escape_codes(desk: Desk) -> None:
    desk.write("jobs/evil\x1b[2J\u202e.toml", 'workload = "synthetic"')
    desk.write("cluster/bad\x07.toml", "")
    for typed in ("config list", "submit nothing", "submit cora --cluster nothing"):
        _, out, err = desk.type(typed)
        check_plain(out + err)


def test_a_hostile_code_path_reaches_only_the_record(desk: Desk) -> None:
    desk.write("jobs/mine.toml", 'workload = "command"\nargv = ["true"]\nname = "mine"\ncode = "../$(touch hacked)"')
    (desk.project / "$(touch hacked)").mkdir()
    code, out, err = desk.type("submit mine --hold")
    assert (code, err) == (0, "")
    assert read_json(desk.runs / out.strip() / "run.json")["job"]["code"].endswith("$(touch hacked)")
    assert not (desk.project / "hacked").exists()
