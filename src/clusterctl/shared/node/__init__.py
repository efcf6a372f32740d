"""The processes on a node: the task's entry point (`entry`), the node's writer, its watchdog, signals."""
