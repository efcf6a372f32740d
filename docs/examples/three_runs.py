"""Three learning rates side by side: submit three runs, wait for them, print a table.

python docs/examples/three_runs.py            on this machine
python docs/examples/three_runs.py mine       on the cluster of cluster/mine.toml
"""

import sys

import clusterctl

cluster = sys.argv[1] if len(sys.argv) > 1 else "local"
rates = [0.001, 0.003, 0.01]
runs = [
    clusterctl.submit("cora", cluster, overrides={"train.lr": rate, "train.epochs": 3, "name": f"cora-lr-{rate}"})
    for rate in rates
]

print(f"{'RUN':<36} {'RATE':>6} {'STATE':<9} {'LOSS':>6} {'TEST':>6}")
for rate, run in zip(rates, runs, strict=True):
    try:
        run.wait(timeout=1800)
    except clusterctl.RunFailed as failure:
        print(f"{run.id:<36} {rate:>6} {failure.diagnosis.findings[0]}")
        continue
    status = run.status()
    loss, accuracy = status.metrics["loss"], status.metrics["test_accuracy"]
    print(f"{run.id:<36} {rate:>6} {status.state:<9} {loss:>6.3f} {accuracy:>6.3f}")
