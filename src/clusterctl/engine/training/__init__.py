"""The training loop. Start reading at `loop.fit`.

`epoch_plan` assigns seeds to ranks, `flat` stores parameters and gradients as two vectors, and `learner` takes a step
and updates them. `objective` is the interface of a learning problem: nodes (`node_objective`), links (`link_objective`)
or whole graphs (`graph_objective`); the `own_*` ones train a user's model.
"""
