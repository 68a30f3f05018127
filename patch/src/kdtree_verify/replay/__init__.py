"""Calls that left their bound: kept in files while the server runs, and repeated from them later by `kdtree replay`."""
