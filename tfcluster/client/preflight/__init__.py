"""The preflight of `up`, `scale` and `doctor`: what is found out and prepared on each host before a change."""
