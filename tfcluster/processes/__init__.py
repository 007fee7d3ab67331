"""What runs in the processes that an agent forks: servers, the prober, the warm interpreter, drivers."""
