"""The decision core: events in, commands out. No IO, no clock, no random numbers."""
