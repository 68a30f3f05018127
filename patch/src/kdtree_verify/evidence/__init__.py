"""What validate measured, kept over restarts: one file for each rank of each server run, in KDTREE_EVIDENCE_DIR.

A rank's process writes (follower.py), `kdtree report` reads (read.py). Reading needs the standard library only.
docs/operating/verdict.md says what is in a file and how long it is kept.
"""
