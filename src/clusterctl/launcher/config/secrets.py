"""Secrets: variables of [env], and that of a webhook's URL, whose values must not appear in scripts or messages.

They are passed in the environment of sbatch (docs/decisions/secrets-and-other-users.md).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

from clusterctl.launcher.config.program import parted
from clusterctl.shared.spec.cluster import SECRETS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.shared.spec import Cluster, Job

    WithEnv = TypeVar("WithEnv", Job, Cluster)

HIDDEN = "***"
_SHORTEST = 4  # characters: hiding every "1" or "yes" would garble the text and protect nothing
# Of a text: an assignment or an option with a literal value, and the password in a URL.
_GIVEN = re.compile(
    r"""(?<![\w$])(?P<name>[A-Za-z_][\w-]*)=(?P<value>"[^"$`]*"|'[^']*'|[^\s;&|()"'$`/~.][^\s;&|()"'$`]*)"""
)
_OF_URL = re.compile(r"""://[^\s/:@"'$]+:(?P<value>[^\s/@"'$]+)@""")
_LEAST_LETTERS = 6
_ENV_SETTING = re.compile(r"((?:--set=)?\s*env\s*(?:\.[^=]*)?=).*", re.DOTALL)


@dataclass(frozen=True)
class Secrets:
    """The patterns of secret variables (such as "*TOKEN*", in any case), and all values they had anywhere."""

    patterns: tuple[str, ...] = SECRETS
    values: frozenset[str] = frozenset()

    def __contains__(self, name: object) -> bool:
        return any(fnmatchcase(str(name).upper(), pattern.upper()) for pattern in self.patterns)

    def having(self, *environments: object) -> Secrets:
        """A copy with the secret values in `environments` added; non-mappings are ignored."""
        tables = [table for table in environments if isinstance(table, dict)]
        found = {str(value) for table in tables for name, value in table.items() if name in self}
        return replace(self, values=self.values | found)

    def hide_in(self, spec: WithEnv) -> WithEnv:
        """A copy of a job or cluster that may be shown and recorded."""
        return replace(spec, env={name: HIDDEN if name in self else value for name, value in spec.env.items()})

    def hide(self, text: str) -> str:
        """`text` without the secret values, whether plain or escaped as in TOML or JSON."""
        for value in sorted(self.values, key=len, reverse=True):
            if len(value) >= _SHORTEST:
                for form in {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}:
                    text = text.replace(form, HIDDEN)
        return text

    def hide_typed(self, words: Sequence[str]) -> list[str]:
        """A command line that may be recorded: `--set env.NAME=...` without its value."""
        ours, program = parted(words)
        return [self.hide(word) for word in [*(_ENV_SETTING.sub(rf"\1{HIDDEN}", word) for word in ours), *program]]

    def parted(self, environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """Split `environment` into variables that may appear in a script, and secret ones."""
        secret = {name: value for name, value in environment.items() if name in self}
        return {name: value for name, value in environment.items() if name not in secret}, secret


def written_secrets(line: str) -> dict[str, str]:
    """What looks like a secret in a line of a script: its name, and its value; of a comment, nothing."""
    if line.lstrip().startswith("#"):
        return {}
    names = Secrets()
    given = ((match["name"], match["value"].strip("\"'")) for match in _GIVEN.finditer(line))
    found = {
        name: value
        for name, value in given
        if name in names and len(value) >= _LEAST_LETTERS and not re.fullmatch(r"[0-9.]+|[/~.].*", value)
    }
    in_url = _OF_URL.search(line)
    return {**found, **({"the password in a URL": in_url["value"]} if in_url else {})}


def secrets_of(job: Job, cluster: Cluster, environment: Mapping[str, str]) -> Secrets:
    """The secrets of a run of `job`, including its notification URL if that is in `environment`."""
    name = job.notify.url_variable
    if name is None:
        return Secrets(cluster.secrets)
    known = {name: environment[name]} if name in environment else {}
    return Secrets((*cluster.secrets, name)).having(known)
