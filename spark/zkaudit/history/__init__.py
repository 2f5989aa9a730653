"""One history from the logs of all servers. The driver builds DataFrames; no Python on executors.

``committed`` decides which proposals were committed and what is missing, ``staging`` cuts the rest
down to events of groups, and ``lifetimes`` follows each znode.
"""
