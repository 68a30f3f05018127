"""Real SGLang servers on a GPU, patched: do they answer as stock does? Run by ci/gpu-proof; docs/proof.md."""
