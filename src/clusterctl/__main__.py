"""`python -m clusterctl`, and the `clusterctl` command."""

import os
import sys


def main() -> None:
    """Run the command, or print the completions that the shell asks for, without slow imports."""
    _forget_current_folder()
    shell = os.environ.get("_CLUSTERCTL_COMPLETE")
    if shell is None:
        from clusterctl.launcher import cli

        cli.main()
    from clusterctl.launcher.api.completions import answer

    found = answer(shell, os.environ.get("COMP_LINE", ""), os.environ.get("COMP_WORD", ""))
    sys.stdout.write("".join(f"{line}\n" for line in found))
    raise SystemExit


def _forget_current_folder() -> None:
    """Import nothing more from where this was typed: PYTHONPATH=:/x and `python -m clusterctl` put it first."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    relative = {os.path.abspath(folder) for folder in folders if folder[:1] != "/"} if folders != [""] else set()  # noqa: PTH100
    if __name__ == "__main__" and not sys.flags.safe_path:
        relative.add(sys.path[0])
    sys.path[:] = [path for path in sys.path if path not in relative]


if __name__ == "__main__":
    main()
