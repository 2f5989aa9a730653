"""Names that other clients give to a group's znodes. Members of the JVM and of this library ignore
such znodes.

Pure. The patterns are also valid in Java.
"""

from __future__ import annotations

from typing import Final

BROKER_PARTITION: Final = r"[0-9]+-[0-9]+"
"""Regex for a whole name ``{broker}-{partition}``: pykafka and Kafka 0.7."""
BYTES_NAME: Final = r"b(['\"]).*\1"
"""Regex for a whole topic name that is a bytes object's text, as pykafka on Python 3 writes it."""
