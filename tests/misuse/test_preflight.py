"""What `submit` sees before anything is queued: told at once, with nothing left behind."""

from __future__ import annotations

import pytest
from support.mistake import CONFIG, Desk, Mistake, check_message, rows

REDDIT = 'workload = "reddit"\n[data]\nroot = "./data"\n'


@rows(
    Mistake(what="the data are not there", job=REDDIT, code=CONFIG, says="data: no such folder", hint="data.root"),
    Mistake(
        what="the data are of another kind",
        job=REDDIT,
        files={"data/raw/reddit_data.npz": "", "data/raw/MUTAG_A.txt": ""},
        code=CONFIG,
        says="lacks raw/reddit_graph.npz",
        hint="data.root",
    ),
    Mistake(
        what="the script has another name",
        job='workload = "command"\nargv = ["python3", "trian.py"]\n',
        files={"train.py": ""},
        code=CONFIG,
        says="argv: no such file: ",
        hint="`code`",
    ),
    Mistake(
        what="the cluster's interpreter is not there",
        typed="submit cora --cluster ./here.toml",
        files={"here.toml": 'kind = "emulator"\npython = "/nowhere/python"\n'},
        code=CONFIG,
        says="no such interpreter: /nowhere/python",
        hint="`python`",
    ),
    Mistake(
        what="the cluster's interpreter is no Python",
        typed="submit cora --cluster ./here.toml",
        files={"here.toml": 'kind = "emulator"\npython = "/bin/true"\n'},
        code=CONFIG,
        says="does not run as Python: /bin/true",
        hint="`python`",
    ),
    Mistake(
        what="more ranks than open files",
        job='workload = "command"\nargv = ["true"]\n[resources]\nnodes = 2000000000\n',
        code=CONFIG,
        says="2000000000 ranks need 4000000064",
        hint="ulimit -n",
    ),
)
def test_what_can_be_seen_from_here_is_told_before_anything_is_queued(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)


def test_all_of_it_is_told_in_one_go(desk: Desk) -> None:
    desk.write("here.toml", 'kind = "emulator"\npython = "/nowhere/python"\n')
    desk.write("job.toml", REDDIT)
    code, out, err = desk.type("submit ./job.toml --cluster ./here.toml")
    assert (code, out) == (CONFIG, "")
    check_message(err, "2 problems would make the run fail", "data.root")
    assert "no such interpreter" in err
    assert "no data" in err
    assert desk.run_directories() == []


@pytest.mark.parametrize("cluster", ['kind = "slurm"\npython = "/raid/venv/bin/python"\n'])
def test_what_may_lie_on_the_nodes_alone_is_left_to_them(desk: Desk, cluster: str) -> None:
    desk.use_slurm(cluster.partition("\n")[2], sbatch='echo "Submitted batch job 7"')
    desk.write("job.toml", 'workload = "reddit"\n[data]\nroot = "/raid/data"\n')
    code, out, err = desk.type("submit ./job.toml")
    assert code == 0, err
    assert out.strip()
