"""What runs in a scheduler process: it arms the kernel, answers verify calls by the mode, measures, and tells."""
