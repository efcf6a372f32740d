"""What a submitter's shell may export to the job: functions named like commands, and shell options."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from shlex import quote

from clusterctl.launcher.submission.script import part


def hostile_shell(called: Path, *parts: str) -> dict[str, str]:
    """Variables that shadow every command in these parts of a script; each call of a shadow is logged in `called`."""
    words = {word for name in parts for word in re.findall(r"[a-z]+|\[|:", part(name))}
    builtins = subprocess.run(["bash", "-c", "compgen -b"], capture_output=True, text=True, check=True).stdout.split()
    commands = {word for word in words if word in builtins or shutil.which(word)} - {"builtin"}
    shadow = f'() {{ /bin/echo "${{FUNCNAME[0]}}" >>{quote(str(called))}; /bin/false; }}'
    return {
        **{f"BASH_FUNC_{command}%%": shadow for command in sorted({*commands, "srun", "scontrol"})},
        "SHELLOPTS": "errexit:noclobber:noglob:nounset:pipefail:posix",
        "BASHOPTS": "failglob",
        "GLOBIGNORE": "*",
    }
