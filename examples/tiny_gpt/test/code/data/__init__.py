"""Corpus, dataset and batches."""
