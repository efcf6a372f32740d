"""The training loop: `loop.fit` reads top to bottom; the rest is what it calls.

`epoch_plan` says who trains on which seeds, `flat` keeps parameters and gradients as two vectors, `adam` moves one
along the other. `objective` is the contract with what is trained: nodes (`node_objective`), links (`link_objective`) or
whole graphs (`graph_objective`).
"""
