"""Runs: what defines one, its directory, and everything that makes or reads it."""
