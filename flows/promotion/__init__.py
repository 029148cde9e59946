"""Promotion: champions, the gate and its nights, and the rematch of two models."""
