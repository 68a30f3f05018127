"""ci/first-build: everything that only a host with a registry and GPUs can tell, tried and written down."""
