"""The image: how it is built, named last and only when it is whole, and what it holds. Run by ci/image."""
