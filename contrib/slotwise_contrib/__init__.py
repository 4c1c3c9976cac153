"""What is built on the engine: the HTTP server and other programs. Nothing here is needed to run a model."""
