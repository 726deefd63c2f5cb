"""Speed, measured side by side: `make bench`, or `python -m benchmarks update replay` for parts."""
