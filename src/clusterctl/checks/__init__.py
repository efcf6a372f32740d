"""What `submit`, `resume` and `doctor` verify. `look` gathers the evidence, `verify` lists the rules that judge it."""
