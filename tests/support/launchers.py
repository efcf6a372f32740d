"""What torchrun prints when workers have failed."""

from __future__ import annotations

TRACEBACK = """Traceback (most recent call last):
  File "/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 264, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


def entry(number: int, code: int, message: str = "") -> str:
    name = {9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}.get(-code)
    message = message or (f"Signal {-code} ({name}) received by PID {100 + number}" if code < 0 else "To enable ...")
    shown = f"{code} (pid: {100 + number}) {f' ({name})' if name else ''}"
    return f"""[{number}]:
  time      : 2026-11-26_00:46:41
  host      : node{number}
  rank      : {4 + number} (local_rank: {number})
  exitcode  : {shown}
  error_file: <N/A>
  traceback : {message}
"""


def block(root: str, others: str = "  <NO_OTHER_FAILURES>\n") -> str:
    line, rule = "-" * 60, "=" * 60
    head = f"{TRACEBACK}{rule}\ntrain.py FAILED\n{line}\nFailures:\n{others}{line}\n"
    return f"{head}Root Cause (first observed failure):\n{root}{rule}\n"
