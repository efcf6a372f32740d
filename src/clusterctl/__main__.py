"""`python -m clusterctl`, and the `clusterctl` command."""

import os
import sys


def main() -> None:
    """Run the command, or print the completions that the shell asks for, without slow imports."""
    shell = os.environ.get("_CLUSTERCTL_COMPLETE")
    if shell is None:
        from clusterctl import cli

        cli.main()
    from clusterctl.api.completions import answer

    found = answer(shell, os.environ.get("COMP_LINE", ""), os.environ.get("COMP_WORD", ""))
    sys.stdout.write("".join(f"{line}\n" for line in found))
    raise SystemExit


if __name__ == "__main__":
    main()
