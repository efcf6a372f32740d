"""`python -m clusterctl`, and the `clusterctl` command."""

from clusterctl.cli import main

if __name__ == "__main__":
    main()
