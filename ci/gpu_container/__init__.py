"""The image in containers on a GPU machine without Docker or a network. Run by ci/gpu-container; docs/proof.md."""
