"""Runs of programs: started, followed, cancelled, recorded."""
