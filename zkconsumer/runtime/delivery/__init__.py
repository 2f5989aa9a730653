"""From fetched bytes to the application: queues, streams and positions."""
