"""The GPT model and its layers."""
