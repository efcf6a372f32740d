"""Our own processes on a node: `python -u .../clusterctl/shared/node/__main__.py RUN_DIR` is one task of a run,
`... RUN_DIR standby` becomes such tasks (`standby`), and `... node_check LIMITS` checks a node (`node_check`).

The current folder is the project's, and PYTHONPATH leads there. Until this process imports the user's modules, the
former is left out and the latter comes last: a `types.py` in the project is for the project, but a package that nothing
else provides (pynvml) is found. With `-m`, Python itself would import from the current folder.
"""

import os
import sys


def main() -> None:
    """Run the process that the command line names."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = {os.path.abspath(folder) for folder in folders} if folders != [""] else set()  # noqa: PTH100
    users = [path for path in sys.path if path in places]
    sys.path[:] = [*(path for path in sys.path if path not in places), *users]
    if not __package__:  # Python puts this folder first, where the package's parent folder is needed
        sys.path[0] = os.path.abspath(f"{__file__}/../../../..")  # noqa: PTH100

    if sys.argv[1] == "node_check":
        from clusterctl.shared.node import node_check

        node_check.main(sys.argv[2:], users)
    else:
        if "CLUSTERCTL_STANDBY" in os.environ:
            if sys.argv[2:] == ["standby"]:
                from clusterctl.shared.node.standby import serve

                serve(sys.argv[1], users)
            else:
                from clusterctl.shared.node.deputy import hand_over

                hand_over()
        from clusterctl.shared.node.entry import run_task

        run_task(sys.argv[1], users)


if __name__ == "__main__":
    main()
