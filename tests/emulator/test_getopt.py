"""Parsing command lines like getopt_long."""

from __future__ import annotations

import pytest

from clusterctl.launcher.emulator.job_request import Options
from clusterctl.shared.errors import SlurmError

OPTIONS = Options("nodes=/N name=/n hold/H quiet/q exclusive? open-mode=")


@pytest.mark.parametrize(
    ("words", "values", "others"),
    [
        (["--nodes=2", "x", "--hold"], {"nodes": "2"}, ["x", "--hold"]),
        (["--nodes", "2", "--hold"], {"nodes": "2", "hold": ""}, []),
        (["-N2", "-Hq", "-n", "a=b c"], {"nodes": "2", "hold": "", "quiet": "", "name": "a=b c"}, []),
        (["--exclusive", "--exclusive=user"], {"exclusive": "user"}, []),
        (["--open=append"], {"open-mode": "append"}, []),
        (["--name=", "--", "--nodes"], {"name": ""}, ["--nodes"]),
        (["-qN", "3", "-"], {"quiet": "", "nodes": "3"}, ["-"]),
    ],
)
def test_every_getopt_spelling_is_accepted(words, values, others):
    assert OPTIONS.parse(words) == (values, others)


def test_permute_accepts_options_after_positional_words():
    assert OPTIONS.parse(["1", "--hold", "2"], permute=True) == ({"hold": ""}, ["1", "2"])


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--nope", "unrecognized option '--nope'"),
        ("--n=1", "option '--n' is ambiguous"),
        ("--hold=1", "option '--hold' doesn't allow an argument"),
        ("--nodes", "option '--nodes' requires an argument"),
        ("-N", "option '--nodes' requires an argument"),
        ("-z", "invalid option -- 'z'"),
    ],
)
def test_an_invalid_option_fails_with_getopts_message(word, message):
    with pytest.raises(SlurmError) as refusal:
        OPTIONS.parse([word])
    assert refusal.value.message == message
