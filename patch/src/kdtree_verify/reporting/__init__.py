"""State files: what launcher and ranks write, and what `kdtree status` and `kdtree health` make of them."""
