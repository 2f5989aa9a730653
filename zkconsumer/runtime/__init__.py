"""Threads, queues and timers that drive the core and carry messages to the user."""
