"""Answers of vision–language models, explained word by word."""
