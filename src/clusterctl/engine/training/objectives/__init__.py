"""The learning problems: `node`, `link`, `graph` and `relation` for the built-in models, `own_*` for those of users."""
