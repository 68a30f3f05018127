"""What a machine with a Blackwell card does with an image that was pushed by its digest. Run by ci/gpu-job."""
