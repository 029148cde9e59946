"""Promotion: champions, the gate, and the rematch of two models."""
