"""The checks of `submit`, `resume` and `doctor`: `look` gathers the evidence, `verify` lists the rules to judge it."""
