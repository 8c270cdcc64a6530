"""Agents that learn from rewards, from search or from a teacher."""
