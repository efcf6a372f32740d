"""What `submit`, `resume` and `doctor` verify: machine, cluster, container, code, data and request.

`verify` lists the rules and is the way in; `look` gathers the `surroundings` that they judge; each gives a `check`.
"""
