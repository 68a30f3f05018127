"""KDTree's patch of SGLang: tree-verify attention for absorbed MLA on sm_120.

Importing this package imports neither torch nor sglang and loads no library.
"""

__version__ = "0.1.0"
