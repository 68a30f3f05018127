"""make demo: the built image answers the same requests with KDTREE_VERIFY off, validate and on. docs/demo.md."""
