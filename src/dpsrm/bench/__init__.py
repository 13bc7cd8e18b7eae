"""Benchmarks: everything compared in one interleaved run, reported as ratios."""
