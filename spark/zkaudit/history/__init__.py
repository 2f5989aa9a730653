"""One history from the logs of all servers. The driver builds DataFrames.

``committed`` decides which proposals were committed and which zxids are missing. ``staging`` sends
the events of each group to one task. There ``batches`` folds them with ``zkaudit.group``.
"""
