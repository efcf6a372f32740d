"""The login node: the command line, its operations, and everything that they ask, check, submit and show.

It starts fast and never imports torch. Start reading with `cli/submit.py`, then `api/submitting/submit.py` and
`api/submitting/submission.py`.
"""
