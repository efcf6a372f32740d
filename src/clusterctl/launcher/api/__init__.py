"""The operations as typed functions, used by every command and by Python programs that `import clusterctl`.

Nothing here prints, prompts, keeps state between calls, or changes the current folder, environment or signal handlers
of its process, so notebooks and threads can call it. Each module is named after its operation and imported on use.
"""
