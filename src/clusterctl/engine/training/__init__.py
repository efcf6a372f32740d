"""The training loop. Start reading at `loop.fit`.

`epoch_plan` assigns seeds to ranks, `flat` stores parameters and gradients as two vectors, and `learner` takes a step
and updates them. `objective` is the interface of a learning problem, and `objectives` are the problems: nodes, links,
whole graphs. `learning` has losses, metrics, optimizers and schedules, and `own` calls the code of users.
"""
