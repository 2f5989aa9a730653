"""The subcommands of ``zkaudit``, one module each, put together by ``root``. Main thread.

``inputs`` has the options of the commands that audit and starts Spark for them, and ``summary``
prints what an audit found. Modules that load Spark are imported inside the commands, so that help
and wrong usage answer at once.
"""
