"""Metrics and health of a member."""
