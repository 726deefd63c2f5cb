"""From logs to numbers, tables, figures and the report."""
