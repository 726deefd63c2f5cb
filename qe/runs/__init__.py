"""One run on disk, and many of them."""
