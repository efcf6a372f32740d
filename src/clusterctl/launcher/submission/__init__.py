"""Job + cluster -> plan -> script -> submitted run.

Plan and script are pure functions: the script that `--dry-run` prints is the one that runs.
"""
