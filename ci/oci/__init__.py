"""A registry's images by digest: asked, pushed, given a tag. Run by ci/push and ci/promote."""
