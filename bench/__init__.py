"""Times the verify kernel on an NVIDIA GPU beside its peers and the card's ceilings (docs/benchmark.md)."""
