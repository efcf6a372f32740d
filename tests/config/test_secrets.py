"""Which variables are secret, and how their values are redacted from a text."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.config.secrets import HIDDEN, Secrets
from clusterctl.shared.spec import Job

secrets = Secrets()


def test_names_are_matched_in_any_case() -> None:
    assert all(name in secrets for name in ("HF_TOKEN", "wandb_api_key", "PASSWORD", "My_Secret_2", "AWS_CREDENTIALS"))
    assert not any(name in secrets for name in ("PATH", "OMP_NUM_THREADS", "NCCL_DEBUG"))
    assert "HF_TOKEN" not in Secrets(())


def test_a_job_keeps_the_names_of_its_secrets() -> None:
    job = secrets.hide_in(Job(name="x", workload="command", env={"HF_TOKEN": "value", "PLAIN": "value"}))
    assert job.env == {"HF_TOKEN": HIDDEN, "PLAIN": "value"}


def test_values_are_collected_from_tables_only() -> None:
    assert secrets.having({"A_KEY": 12345}, None, [1], "KEY", {"B": "x"}).values == {"12345"}


texts = st.text('ab"\\\né\x01', max_size=20)


@given(texts.filter(lambda value: len(value) >= 4), texts, texts)
def test_a_value_is_redacted_however_it_is_escaped(value: str, before: str, after: str) -> None:
    known = secrets.having({"KEY": value})
    for form in (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]):
        assert form not in known.hide(f"{before}{form}{after}")


def test_short_values_are_not_redacted() -> None:
    assert secrets.having({"SORT_KEY": "a"}).hide("banana") == "banana"


def test_a_recorded_command_line_keeps_only_the_names_of_variables() -> None:
    words = ["submit", "x", "--set", "env.A=1", "--set=env.B_TOKEN=2", "--set", 'env={C="3"}', "--set", "train.lr=4"]
    expected = ["submit", "x", "--set", "env.A=***", "--set=env.B_TOKEN=***", "--set", "env=***", "--set", "train.lr=4"]
    assert secrets.hide_typed(words) == expected
