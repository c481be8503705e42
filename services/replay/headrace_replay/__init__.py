"""The replay service: stores items whose payload it never opens, and deals them out in batches."""
