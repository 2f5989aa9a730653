"""The subcommands of ``zkaudit``, one module each, collected by ``root``. Main thread.

``inputs`` has the options of the commands that audit, and starts Spark for them. ``summary``
prints the result of an audit. Modules that load Spark are imported inside the commands, so that
help and usage errors appear immediately.
"""
