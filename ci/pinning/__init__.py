"""ci/pins.toml, the one file of pins: read, checked, resolved anew. Run by ci/pins; docs/supply-chain/pins.md."""
