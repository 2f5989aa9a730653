"""Functions that the command lines of zkconsumer, zkmigrate and zkaudit share."""
