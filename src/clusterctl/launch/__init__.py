"""Job + cluster -> plan -> script -> submitted run.

Plan and script are pure: what `--dry-run` prints is what runs.
"""
