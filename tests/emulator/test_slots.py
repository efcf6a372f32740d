"""Which jobs are preempted. Placement is tested with the supervisor."""

from __future__ import annotations

from clusterctl.launcher.emulator import jobs
from clusterctl.launcher.emulator.scheduling import victims
from clusterctl.launcher.emulator.virtual_cluster import Machine


def test_as_few_jobs_as_possible_are_preempted_newest_first(cluster):
    hold = "touch ready-$SLURM_JOB_ID; sleep 60"
    held = [cluster.submit(hold, "--partition=preemptable", "--ntasks=2") for _ in range(2)]
    ready = [cluster.work / f"ready-{job}" for job in held]
    cluster.until(lambda: all(path.exists() for path in ready), "both run")
    waiting = {
        size: cluster.submit("true", f"--nodes={size}", "--exclusive", "--hold", "--partition=urgent")
        for size in (1, 2)
    }
    machine = Machine.load(cluster.bin)
    for size, job in waiting.items():
        assert [victim.id for victim in victims(machine, jobs.find(machine, job))] == [
            int(j) for j in held[::-1][:size]
        ]
    preemptable = cluster.submit("true", "--nodes=1", "--exclusive", "--hold", "--partition=preemptable")
    assert victims(machine, jobs.find(machine, preemptable)) == []
