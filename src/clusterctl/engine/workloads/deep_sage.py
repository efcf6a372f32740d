"""Deep SAGE: three layers of GraphSAGE with small fan-outs, on any graph in the raw format of PyG's Reddit data set.

clusterctl submit deep-sage --set data.root=/data/Reddit --follow
torchrun --standalone --nproc-per-node 4 -m clusterctl.train deep-sage jobs/deep-sage-cora.toml

The same program as `reddit` with other settings: one more layer, and an outermost hop of 4 * 4 * 4 neighbours per seed
instead of 25 * 10.
"""

from __future__ import annotations

from clusterctl.engine.workloads.reddit import main

__all__ = ["main"]
