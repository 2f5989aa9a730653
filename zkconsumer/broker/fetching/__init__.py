"""Messages of partitions: the requests for them, and their decoding."""
