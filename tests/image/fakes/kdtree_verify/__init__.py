"""In place of the real package where a test only asks what the entrypoint hands over."""
