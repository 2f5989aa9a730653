"""Metrics, health and the watchdog of a member."""
