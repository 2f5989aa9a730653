"""Simulated servers: ZooKeeper, and the group coordinators of both protocols."""
