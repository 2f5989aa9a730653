"""Compare the speed of zkconsumer, the JVM's consumers and other Python clients."""
