"""From the start of the process to the first request: what is happening, and for how long."""
