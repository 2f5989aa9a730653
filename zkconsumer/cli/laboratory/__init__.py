"""Commands that start servers or simulated groups of their own."""
