"""The kernel library as Python sees it: its ABI, how it is loaded, and what makes a call of SGLang's one of its own."""
