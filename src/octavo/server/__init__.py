"""The OpenAI-compatible HTTP server: wire forms in front, one engine behind."""
