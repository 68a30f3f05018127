"""Stand-in for what SGLang lacks on a CPU; used by tests and stand-in images, never by the product."""
