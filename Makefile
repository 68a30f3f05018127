# Each verb calls one script in ci/; what it does is said there.
.DEFAULT_GOAL := help
.PHONY: help demo test matrix image reproduce kernel gpu-test bench lint clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):  *## \(.*\)/  make \1\t\2/p' Makefile

demo:  ## build the image on stand-in bases and serve with it on the CPU: off, validate, on
	@ci/demo/run

test:  ## everything that a machine without a GPU can test
	@ci/test

matrix:  ## the patch's and the server's tests, whole, on each tested SGLang (20 minutes for each)
	@ci/matrix

image:  ## build the real image (needs a registry)
	@ci/image

reproduce:  ## build the image twice and compare, to the bit (docs/supply-chain/reproduce.md)
	@ci/reproduce

kernel:  ## compile both libraries and write build/kernel-report.json
	@ci/kernel

gpu-test:  ## the tests that need an NVIDIA GPU, then real servers on it (docs/proof.md)
	@ci/gpu-test

bench:  ## time the kernel on an NVIDIA GPU beside its peers (GRID=1: the grid; POOL=e4m3)
	@ci/bench $(if $(GRID),grid,table) $(if $(POOL),--pool $(POOL))

lint:  ## ruff, mypy, shellcheck, hadolint, pins
	@ci/lint

clean:  ## remove build/, and stop what runs from it
	@ci/clean
