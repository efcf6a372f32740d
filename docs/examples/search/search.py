"""Search a learning rate with Optuna's ask and tell: four runs at a time, each on the cluster.

pip install optuna
cd docs/examples/search         a run gets a copy of this folder
python search.py                on this machine
python search.py mine           on the cluster of cluster/mine.toml
"""

import sys

import optuna
from functions import loss_of

import clusterctl

AT_ONCE, ROUNDS = 4, 2

cluster = sys.argv[1] if len(sys.argv) > 1 else "local"
study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
for _ in range(ROUNDS):
    trials = [study.ask() for _ in range(AT_ONCE)]
    rates = [trial.suggest_float("lr", 1e-4, 1e-1, log=True) for trial in trials]
    one = {"resources.nodes": 1, "resources.time": "10m"}
    runs = [clusterctl.submit_function(loss_of, rate, cluster=cluster, overrides=one) for rate in rates]
    for trial, run in zip(trials, runs, strict=True):
        try:
            study.tell(trial, run.result(timeout=1800))
        except clusterctl.RunFailed:  # `clusterctl why` has the cause
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
print(f"best: {study.best_value:.2g} at a rate of {study.best_params['lr']:.3g}")
