"""Runs whose numbers can be believed: questions, orders, admission checks, statistics."""
