"""The configuration: one table of keys for parsing, the command line and the reference.

It has no thread, and reads only the given properties file.
"""

from zkconsumer.config.consumer import ConsumerConfig

__all__ = ["ConsumerConfig"]
