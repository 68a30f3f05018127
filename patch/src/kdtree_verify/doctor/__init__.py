"""Preflight: what must hold before a server starts. `kdtree doctor` asks it all, the image's entrypoint what is quick.

The standard library only, but for NVML's module; torch and CUDA run in child processes. docs/doctor.md says what each
check asks, where its limit comes from and which exit code it has.
"""
