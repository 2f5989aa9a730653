"""The only package that uses kazoo."""
