"""Settings of Spark for tests. Their data is small: compiling and planning again cost more
than they save."""

from __future__ import annotations

from typing import Final

PLANS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
"""Plans that begin soon. ``tests/conftest.py`` gives them to every Spark that a test starts."""
SUBMIT_ARGS: Final = " ".join(
    [*(f"--conf {name}={value}" for name, value in PLANS.items()), "pyspark-shell"]
)
"""Value of ``PYSPARK_SUBMIT_ARGS``."""
DRIVER: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # No time to warm up. The cache that belongs to this level is full after some audits.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m "
    "-XX:+UseSerialGC",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""A driver on loopback."""
