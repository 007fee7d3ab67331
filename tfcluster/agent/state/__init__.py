"""What an agent keeps on disk: its journal, secrets, and the code of runs, in the state directory."""
