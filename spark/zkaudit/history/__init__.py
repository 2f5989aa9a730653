"""One history from the logs of all servers. The driver builds DataFrames; no Python on executors.

``committed`` decides which proposals were committed and which zxids are missing, ``staging`` keeps
only the events of groups, and ``lifetimes`` follows each znode.
"""
