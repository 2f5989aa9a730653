"""The decision core: facts in, orders out. No IO, no clock, no random numbers."""
