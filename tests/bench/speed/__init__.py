"""The bench of readers: us beside the JVM's consumers and other Python clients."""
