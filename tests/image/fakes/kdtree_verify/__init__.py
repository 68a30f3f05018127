"""The real package, but for its launcher, where a test only asks what the entrypoint hands over."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
__version__ = "0.1.0"
