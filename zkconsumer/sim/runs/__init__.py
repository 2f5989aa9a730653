"""Studies on simulated groups: the herd effect and split brain."""
