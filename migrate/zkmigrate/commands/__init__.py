"""The subcommands of ``zkmigrate``, one module for each verb, collected by ``root``. ``options``
has shared options, and ``output`` prints results. ``planning`` makes the plans, ``clusters`` those
between two clusters, ``comparison`` compares the stores with one, and ``steps`` carries out steps
of live moves."""
