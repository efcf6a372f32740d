"""What people see: tables, a live view of one run, summaries. The only place for rich; `plain` alone does without.

Everything that a user or a program wrote is escaped before it reaches a terminal.
"""
