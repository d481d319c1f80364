"""Joins spans and samples on one clock into Metrics; pure."""
