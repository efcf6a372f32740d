"""How runs are started: loaded, planned, checked and sent, alone, as a sweep or again."""
