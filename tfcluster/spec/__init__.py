"""The user's YAML, validated into one frozen spec."""
