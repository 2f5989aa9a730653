"""Real members and their cost, for `zkconsumer herd`."""
