"""Looking inside a trained ensemble."""
