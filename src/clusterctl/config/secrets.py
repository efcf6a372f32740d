"""Secrets: variables of [env] whose values appear in no script, record or message; and that with a webhook's URL.

They travel in the environment of sbatch (docs/decisions/0009-secrets.md).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

from clusterctl.config.program import parted
from clusterctl.spec.cluster import SECRETS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.spec import Cluster, Job

    WithEnv = TypeVar("WithEnv", Job, Cluster)

HIDDEN = "***"
_SHORTEST = 4  # characters: to hide every "1" or "yes" would spoil a text and keep no secret
_ENV_SETTING = re.compile(r"((?:--set=)?\s*env\s*(?:\.[^=]*)?=).*", re.DOTALL)


@dataclass(frozen=True)
class Secrets:
    """Which variables are secret (by patterns such as "*TOKEN*", in any case), and which values they had anywhere."""

    patterns: tuple[str, ...] = SECRETS
    values: frozenset[str] = frozenset()

    def __contains__(self, name: object) -> bool:
        return any(fnmatchcase(str(name).upper(), pattern.upper()) for pattern in self.patterns)

    def having(self, *environments: object) -> Secrets:
        """With the values of secret variables in `environments` added; non-mappings are ignored."""
        tables = [table for table in environments if isinstance(table, dict)]
        found = {str(value) for table in tables for name, value in table.items() if name in self}
        return replace(self, values=self.values | found)

    def hide_in(self, spec: WithEnv) -> WithEnv:
        """A job or cluster as it may be shown and recorded."""
        return replace(spec, env={name: HIDDEN if name in self else value for name, value in spec.env.items()})

    def hide(self, text: str) -> str:
        """`text` without the values, as they are or as a string of TOML or JSON would hold them."""
        for value in sorted(self.values, key=len, reverse=True):
            if len(value) >= _SHORTEST:
                for form in {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}:
                    text = text.replace(form, HIDDEN)
        return text

    def hide_typed(self, words: Sequence[str]) -> list[str]:
        """A command line that may be recorded: `--set env.NAME=...` keeps its name and loses its value."""
        ours, program = parted(words)
        return [self.hide(word) for word in [*(_ENV_SETTING.sub(rf"\1{HIDDEN}", word) for word in ours), *program]]

    def parted(self, environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """The variables that a script may show, and those that it may not."""
        secret = {name: value for name, value in environment.items() if name in self}
        return {name: value for name, value in environment.items() if name not in secret}, secret


def secrets_of(job: Job, cluster: Cluster, environment: Mapping[str, str]) -> Secrets:
    """Those that a run of `job` has, with the URL that it notifies if that is in `environment`."""
    name = job.notify.url_variable
    if name is None:
        return Secrets(cluster.secrets)
    known = {name: environment[name]} if name in environment else {}
    return Secrets((*cluster.secrets, name)).having(known)
