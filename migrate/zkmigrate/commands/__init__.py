"""The subcommands of ``zkmigrate``, one module for each verb, put together by ``root``.

``options`` has what several commands take, and ``output`` what they print. ``planning`` makes the
plans, ``clusters`` those between two clusters, ``comparison`` compares the stores with one, and
``steps`` carries out steps of live moves.
"""
