"""Threads, queues and timers that run the core and deliver messages to the application."""
