"""The operations, as typed functions: what `import clusterctl` gives a Python program, and what every command calls.

Nothing here prints, asks, changes the folder, the environment or the signal handlers of its process, or keeps state
between calls: a notebook and a thread can call it. Each module has one operation's name and is imported with it.
"""
