"""The processes of a group (`launch`): its coordinator, and the process that starts its members on each host."""
