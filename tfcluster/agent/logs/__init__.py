"""What tasks print and what happened to them: written, read, followed."""
