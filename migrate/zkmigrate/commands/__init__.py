"""The subcommands of ``zkmigrate``, one module for each verb, put together by ``root``.

``selection``, ``decisions`` and ``servers`` are options that several commands share; each hands
the command one value (``Selection``, ``Options``, ``Servers``). ``planning`` makes the
plans, and ``running`` is what ``apply`` and ``undo`` share. ``cells`` turns problems and
offsets into cells of rows, ``progress`` shows on standard error how far a run is, and ``files``
reads and writes what options name. Rows go to standard output, everything else to standard error.
"""
