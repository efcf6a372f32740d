"""The training loop. Start reading at `loop.fit`.

`epoch_plan` assigns seeds to ranks, `flat` stores parameters and gradients as two vectors, and `learner` takes a step
and updates them. `objective` is the interface of a learning problem, and `objectives` are the problems: nodes, links,
whole graphs. `losses`, `metrics` and `optimizer` are what `[train]` chooses in any of them, and `own` calls the code of
users.
"""
