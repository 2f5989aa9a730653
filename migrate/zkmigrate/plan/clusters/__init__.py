"""Offsets in another cluster: ``translation`` finds them, and ``across`` decides for a mirror."""
