"""The rules of simulated groups."""
