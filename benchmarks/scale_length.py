"""The cost of looking at a run as it grows longer: more steps, more attempts. One rank's metrics contain everything.

The metrics are written by the training's own writer; its time per step is printed too.

python benchmarks/scale_length.py [--steps 10000 100000 1000000] [--attempts 1 10 100]
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from command_cost import HEAD, cost_of
from side_by_side import arguments
from support.made_runs import Case, write_many_ranks

from clusterctl.shared.record.files import write_json
from clusterctl.shared.record.metrics import MetricsWriter

if TYPE_CHECKING:
    from clusterctl.shared.record.layout import RunDir

STEPS, ATTEMPTS, STEPS_OF_AN_ATTEMPT = (10_000, 100_000, 1_000_000), (1, 10, 100), 10_000
BEGAN = 1_767_323_045.0
STEP = {
    "epoch": 3, "epochs": 10, "classes": 41, "seconds": 0.123456, "sampling": 0.012345, "gathering": 0.001234,
    "compute": 0.098765, "communication": 0.011112, "nodes_per_second": 33170, "edges_per_second": 1234567,
}  # fmt: skip


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("--steps", type=int, nargs="*", default=STEPS)
    words.add_argument("--attempts", type=int, nargs="*", default=ATTEMPTS)
    options = words.parse_args()
    for steps in options.steps:
        measure(f"{steps} steps", [steps])
    for attempts in options.attempts:
        measure(f"{attempts} attempts", [STEPS_OF_AN_ATTEMPT] * attempts)


def measure(title: str, attempts: list[int]) -> None:
    """Print the cost of the commands on a run whose attempts did these numbers of steps."""
    with tempfile.TemporaryDirectory(prefix="scale-") as name:
        run = write_many_ranks(Path(name), 4, Case.RUNNING, time.time())
        began = time.process_time()
        write(run, attempts)
        took = (time.process_time() - began) / sum(attempts)
        size = sum(attempt.metrics.stat().st_size for attempt in run.attempts())
        print(f"{title}: metrics {size / 1e6:.1f} MB, {took * 1e6:.1f} us per step to write", flush=True)
        print(f"{'':>16}{HEAD}")
        for argv in (["status", run.id], ["why", run.id], ["monitor", "--once"], ["report", run.id]):
            print(f"{' '.join(argv[:2]).replace(run.id, ''):>16}{cost_of(argv, Path(name))}", flush=True)


def write(run: RunDir, attempts: list[int]) -> None:
    """Write the metrics. Each attempt continues where the one before ended; all but the last were preempted."""
    run.attempt(0).metrics.unlink()
    done, planned = 0, 2 * sum(attempts)
    for number, steps in enumerate(attempts):
        attempt = run.attempt(number)
        attempt.path.mkdir(exist_ok=True)
        ended = {"end": BEGAN + number + 1, "exit_code": 85, "requeued": True} if number < len(attempts) - 1 else {}
        write_json(attempt.host_json, {"job_id": "7", "restart_count": number, "start": BEGAN + number, **ended})
        writer = MetricsWriter(attempt, 0)
        for step in range(done + 1, done + steps + 1):
            writer.write(step=step, steps=planned, loss=3.0 / (1 + step / 1000) + 0.1, **STEP)
            if step % 1000 == 0:
                writer.write(step=step, steps=planned, val_accuracy=1 - 1 / step, evaluation_seconds=1.5)
        done += steps


if __name__ == "__main__":
    main()
