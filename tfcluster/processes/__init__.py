"""The processes that an agent forks: servers, the health prober, the log writer, the fork server and drivers."""
