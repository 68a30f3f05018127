"""The image built twice and compared, to the bit; a difference told file by file. Run by ci/reproduce."""
