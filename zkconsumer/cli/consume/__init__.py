"""``zkconsumer consume``: read topics in a terminal."""
