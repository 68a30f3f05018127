"""What a rank counts, as series of SGLang's own /metrics. Only where the server was started with --enable-metrics.

SGLang runs prometheus_client in multiprocess mode: each process writes its values into files of
PROMETHEUS_MULTIPROC_DIR, and the HTTP server adds them up at a scrape. So ours need no endpoint, no port and no change
to SGLang. The values are those of the rank's state file: catalogue.py says which, docs/operating/monitoring.md what
they mean.
"""

from .publisher import followers

__all__ = ["followers"]
